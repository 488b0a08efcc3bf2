// Small messages: units of 16 bytes into places that are empty, so that each says by itself that it is there, and one
// word of the message's number and its head. Compiled behind kernels.cu, whose words it uses.
//
// That spares the sender the wait for the peer's memory which must lie between rows and a word that speaks for them. A
// place is empty while it is all ones. Both sides move a unit as one value of 128 bits with relaxed operations of system
// scope, which is what CUDA's own 128-bit atomics load and store with (from compute capability 7.0 on): so what is not
// all ones is whole. Whoever waits takes the unit out and leaves its place empty again; the peer stores there next only
// after it had an answer that came later in this stream. NaNs that are all ones travel as other NaNs.
#define UNITS_AT 8192  // behind the words of chunks
#define PASSES 2  // units of a thread that are under way at once

struct Unit { u64 low, high; };

__device__ __forceinline__ bool empty(const Unit& v) { return (v.low & v.high) == ~0ull; }
__device__ __forceinline__ Unit load_unit(u64 at) {
    Unit v;
    asm volatile("{.reg .b128 v; ld.relaxed.sys.global.b128 v, [%2]; mov.b128 {%0, %1}, v;}"
                 : "=l"(v.low), "=l"(v.high) : "l"(at) : "memory");
    return v;
}
__device__ __forceinline__ void store_unit(u64 at, const Unit& v) {
    asm volatile("{.reg .b128 v; mov.b128 v, {%1, %2}; st.relaxed.sys.global.b128 [%0], v;}"
                 :: "l"(at), "l"(v.low), "l"(v.high) : "memory");
}
__device__ __forceinline__ u64 load_relaxed(u64 at) {
    u64 v; asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(at) : "memory"); return v;
}
__device__ __forceinline__ void store_relaxed(u64 at, u64 v) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" :: "l"(at), "l"(v) : "memory");
}
__device__ __forceinline__ u64 place_of(u32 block, u32 pass) {
    return 16ull * ((block + pass * gridDim.x) * THREADS + threadIdx.x);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) afd_put_units(const __grid_constant__ Args a) {
    const Part& p = a.part[blockIdx.y];
    const bool tells = blockIdx.x == 0 && threadIdx.x == 0;
    after_earlier_kernels();
    let_later_kernels_come();
    const u32 over = load_word(p.over), number = tells ? load_word(p.counts) + 1 : 0;
    for (u32 first = blockIdx.x; first * (16 * THREADS) < p.bytes; first += PASSES * gridDim.x) {
        Unit v[PASSES];
#pragma unroll
        for (u32 k = 0; k < PASSES; k++) {
            const u64 at = place_of(first, k);
            if (at >= p.bytes) continue;
            const uint4 rows = load_rows((const uint4*)(p.from + at));
            v[k] = {(u64)rows.y << 32 | rows.x, (u64)rows.w << 32 | rows.z};
            if (empty(v[k])) v[k].high >>= 1;
        }
        if (over) return;
        if (tells && first == 0) store_relaxed(p.flags, (u64)number << 32 | p.head);
#pragma unroll
        for (u32 k = 0; k < PASSES; k++)
            if (place_of(first, k) < p.bytes) store_unit(p.flags + UNITS_AT + place_of(first, k), v[k]);
    }
    if (tells) *(u32*)p.counts = number;
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) afd_wait_units(const __grid_constant__ Args a) {
    const Part& p = a.part[blockIdx.y];
    const bool asks = blockIdx.x == 0 && threadIdx.x == 0;
    const u32 number = asks ? load_word(p.counts) + 1 : 0;
    const u64 slot = p.flags + UNITS_AT;
    bool told = !asks, begun = false;
    u32 why = 0;
    u64 word = 0, since = 0;
    long long looked = 0;
    for (u32 first = blockIdx.x; first * (16 * THREADS) < p.bytes && !why; first += PASSES * gridDim.x) {
        Unit v[PASSES];
        u32 missing = 0;
#pragma unroll
        for (u32 k = 0; k < PASSES; k++) missing |= (place_of(first, k) < p.bytes) << k;
        const u32 wanted = missing;
        for (u32 spins = 1;; spins++) {
#pragma unroll
            for (u32 k = 0; k < PASSES; k++) if (missing >> k & 1) v[k] = load_unit(slot + place_of(first, k));
            if (!told) {
                word = load_relaxed(p.flags);
                told = (u32)(word >> 32) == number;
                if (told && (u32)word != p.head) why = MISMATCH;
            }
#pragma unroll
            for (u32 k = 0; k < PASSES; k++) if (missing >> k & 1 && !empty(v[k])) missing &= ~(1u << k);
            if (why || (told && !missing)) break;
            if (spins % LOOK_EVERY == 0 && (why = verdict(p, a.limit_ns, since, looked))) break;
        }
        if (!begun) { after_earlier_kernels(); let_later_kernels_come(); begun = true; }
        if (why) break;
        const Unit none = {~0ull, ~0ull};
#pragma unroll
        for (u32 k = 0; k < PASSES; k++) {
            if (!(wanted >> k & 1)) continue;
            const u64 at = place_of(first, k);
            *(ulonglong2*)(p.to + at) = make_ulonglong2(v[k].low, v[k].high);
            store_unit(slot + at, none);
        }
    }
    if (!begun) { after_earlier_kernels(); let_later_kernels_come(); }
    if (why) give_up(p, why, word);
    if (asks) *(u32*)p.counts = number;
}
