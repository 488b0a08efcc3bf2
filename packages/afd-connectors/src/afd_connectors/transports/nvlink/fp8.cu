// Rows of bf16 or fp16 that travel as e4m3 with one float scale a row; compiled behind units.cu, whose words it uses and
// as which small messages travel: no unit of e4m3 is all ones, since its NaN has no sign here.
//
// A row's scale is its largest finite element over 448, the largest of e4m3, which has no infinity: what is not finite
// arrives as NaN, and the rest of its row as if it were not there. Rows are taken by teams of four warps.
struct Row {
    Part p;      // bytes: rows of the message; chunk: rows of one chunk
    u64 scales;  // one float per row, in the memory of whoever receives
    u32 units;   // of 16 bytes, of a row as the model has it
    u32 half;    // whether the model's rows are fp16, and not bf16
};

struct Packed {
    u64 limit_ns;
    Row row[8];
};

#define TEAM 128
#define WARPS 4  // of a team; each has a unit of its own with the scale, behind those of the row
#define KEPT 4  // pairs of units that a thread keeps while the row's largest element is looked for
#define LARGEST 448.0f
#define FLOOR 1e-30f  // keeps both the scale and its inverse normal numbers; a row of zeros has this one
#define TOP 3.402823466e38f

__device__ __forceinline__ void team_barrier(u32 team) { asm volatile("bar.sync %0, %1;" :: "r"(team + 1), "n"(TEAM) : "memory"); }

template <bool HALF> __device__ __forceinline__ void two(u32 word, float& low, float& high) {
    if (HALF) {
        asm("{.reg .f16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b;}" : "=f"(low), "=f"(high) : "r"(word));
    } else {
        low = __uint_as_float(word << 16);
        high = __uint_as_float(word & 0xffff0000u);
    }
}

template <bool HALF> __device__ __forceinline__ u32 one(float low, float high) {
    u32 word;
    if (HALF) asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    else asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

__device__ __forceinline__ float larger(float most, float x) {
    const float a = fabsf(x);
    return a > most && a <= TOP ? a : most;
}

template <bool HALF> __device__ __forceinline__ float largest(float most, const uint4& v) {
    const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
        float low, high;
        two<HALF>(words[j], low, high);
        most = larger(larger(most, low), high);
    }
    return most;
}

// x - x is 0, and NaN for what is not finite, which the conversion would make the largest number.
template <bool HALF> __device__ __forceinline__ u32 narrow(u32 first, u32 second, float inverse) {
    float a, b, c, d;
    two<HALF>(first, a, b);
    two<HALF>(second, c, d);
    unsigned short front, back;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(front) : "f"(b * inverse + (b - b)), "f"(a * inverse + (a - a)));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(back) : "f"(d * inverse + (d - d)), "f"(c * inverse + (c - c)));
    return (u32)back << 16 | front;
}

template <bool HALF> __device__ __forceinline__ uint4 narrowed(const uint4& a, const uint4& b, float inverse) {
    return make_uint4(narrow<HALF>(a.x, a.y, inverse), narrow<HALF>(a.z, a.w, inverse), narrow<HALF>(b.x, b.y, inverse),
                      narrow<HALF>(b.z, b.w, inverse));
}

template <bool HALF> __device__ __forceinline__ void widen(u32 word, float scale, u32& first, u32& second) {
    u32 pairs[2];
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pairs[0]) : "h"((unsigned short)word));
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pairs[1]) : "h"((unsigned short)(word >> 16)));
    float a, b, c, d;
    two<true>(pairs[0], a, b);
    two<true>(pairs[1], c, d);
    first = one<HALF>(a * scale, b * scale);
    second = one<HALF>(c * scale, d * scale);
}

__device__ __forceinline__ void load_pair(const uint4* row, u32 pair, u32 units, uint4& a, uint4& b) {
    a = load_rows(row + 2 * pair);
    b = 2 * pair + 1 < units ? load_rows(row + 2 * pair + 1) : make_uint4(0, 0, 0, 0);
}

// Of all four warps of a team; `turn` alternates, so that the next row's is not written while this one's is read.
__device__ __forceinline__ float of_team(float most, u32 team, u32 turn) {
    __shared__ float found[2][THREADS / 32];
#pragma unroll
    for (u32 far = 16; far; far /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, far));
    if (threadIdx.x % 32 == 0) found[turn][threadIdx.x / 32] = most;
    team_barrier(team);
    const float* mine = found[turn] + team * (TEAM / 32);
    return fmaxf(fmaxf(mine[0], mine[1]), fmaxf(mine[2], mine[3]));
}

__device__ __forceinline__ u32 rows_of(const Row& r, u32 chunk) {
    const u32 left = r.p.bytes - chunk * r.p.chunk;
    return left < r.p.chunk ? left : r.p.chunk;
}

// Of a thread's share of a row, whose beginning it keeps.
template <bool HALF> __device__ __forceinline__ float largest_of(const uint4* row, u32 units, uint4 (&a)[KEPT], uint4 (&b)[KEPT]) {
    const u32 at = threadIdx.x % TEAM, pairs = (units + 1) / 2;
    float most = FLOOR;
#pragma unroll
    for (u32 j = 0; j < KEPT; j++) if (at + j * TEAM < pairs) load_pair(row, at + j * TEAM, units, a[j], b[j]);
#pragma unroll
    for (u32 j = 0; j < KEPT; j++)
        if (at + j * TEAM < pairs) most = largest<HALF>(largest<HALF>(most, a[j]), b[j]);
    for (u32 i = at + KEPT * TEAM; i < pairs; i += TEAM) {
        uint4 c, d;
        load_pair(row, i, units, c, d);
        most = largest<HALF>(largest<HALF>(most, c), d);
    }
    return most;
}

// False when nothing was written because the window is over, which is asked while the first rows are being read.
template <bool HALF> __device__ __forceinline__ bool pack(const Row& r, u32 chunk, u32& turn) {
    const u32 team = threadIdx.x / TEAM, at = threadIdx.x % TEAM, pairs = (r.units + 1) / 2;
    const u32 start = chunk * r.p.chunk, end = start + rows_of(r, chunk), over = load_word(r.p.over);
    for (u32 k = start + team; k < end; k += THREADS / TEAM, turn ^= 1) {
        const uint4* in = (const uint4*)r.p.from + (u64)k * r.units;
        uint4* out = (uint4*)r.p.to + (u64)k * pairs;
        uint4 a[KEPT], b[KEPT];
        const float most = of_team(largest_of<HALF>(in, r.units, a, b), team, turn);
        if (__any_sync(~0u, over)) continue;  // not an end: other warps of the team may not have seen it, and meet this one
        const float inverse = LARGEST / most;
        if (at == 0) ((float*)r.scales)[k] = most / LARGEST;
#pragma unroll
        for (u32 j = 0; j < KEPT; j++)
            if (at + j * TEAM < pairs) out[at + j * TEAM] = narrowed<HALF>(a[j], b[j], inverse);
        for (u32 i = at + KEPT * TEAM; i < pairs; i += TEAM) {
            uint4 c, d;
            load_pair(in, i, r.units, c, d);
            out[i] = narrowed<HALF>(c, d, inverse);
        }
    }
    return over == 0;
}

template <bool HALF> __device__ __forceinline__ void store_pair(uint4* row, u32 pair, u32 units, const uint4& v, float scale) {
    uint4 a, b;
    widen<HALF>(v.x, scale, a.x, a.y);
    widen<HALF>(v.y, scale, a.z, a.w);
    widen<HALF>(v.z, scale, b.x, b.y);
    widen<HALF>(v.w, scale, b.z, b.w);
    row[2 * pair] = a;
    if (2 * pair + 1 < units) row[2 * pair + 1] = b;
}

template <bool HALF> __device__ __forceinline__ void unpack(const Row& r, u32 chunk) {
    const u32 team = threadIdx.x / TEAM, at = threadIdx.x % TEAM, pairs = (r.units + 1) / 2;
    const u32 start = chunk * r.p.chunk, end = start + rows_of(r, chunk);
    for (u32 k = start + team; k < end; k += THREADS / TEAM) {
        const uint4* in = (const uint4*)r.p.from + (u64)k * pairs;
        uint4* out = (uint4*)r.p.to + (u64)k * r.units;
        const float scale = __uint_as_float(load_word(r.scales + 4ull * k));
        uint4 v[KEPT];
        for (u32 i = at; i < pairs; i += KEPT * TEAM) {
#pragma unroll
            for (u32 j = 0; j < KEPT; j++) if (i + j * TEAM < pairs) v[j] = load_rows(in + i + j * TEAM);
#pragma unroll
            for (u32 j = 0; j < KEPT; j++)
                if (i + j * TEAM < pairs) store_pair<HALF>(out, i + j * TEAM, r.units, v[j], scale);
        }
    }
}

__device__ __forceinline__ void unpack_either(const Row& r, u32 chunk) {
    if (r.half) unpack<true>(r, chunk);
    else unpack<false>(r, chunk);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) afd_put8(const __grid_constant__ Packed a) {
    const Row& r = a.row[blockIdx.y];
    u32 turn = 0;
    after_earlier_kernels();
    let_later_kernels_come();
    for (u32 c = blockIdx.x; c < r.p.chunks; c += gridDim.x) {
        const u32 number = load_word(r.p.counts + 4ull * c) + 1;
        const bool sent = r.half ? pack<true>(r, c, turn) : pack<false>(r, c, turn);
        if (!__syncthreads_and(sent)) return;
        if (threadIdx.x == 0) tell(r.p, c, number);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) afd_wait8(const __grid_constant__ Packed a) {
    const Row& r = a.row[blockIdx.y];
    __shared__ u32 lost;
    u64 since = 0;
    bool first = true;
    for (u32 c = blockIdx.x; c < r.p.chunks; c += gridDim.x) {
        if (threadIdx.x == 0) lost = !await_chunk(r.p, c, a.limit_ns, since);
        if (first) { after_earlier_kernels(); let_later_kernels_come(); first = false; }
        __syncthreads();
        if (lost) return;
        unpack_either(r, c);
        __syncthreads();
    }
}

// The same in two, where many blocks that wait would keep others from computing: one block that waits, others that come
// once it is over.
extern "C" __global__ void __launch_bounds__(THREADS, 2) afd_await8(const __grid_constant__ Packed a) {
    const Row& r = a.row[blockIdx.y];
    u64 since = 0;
    for (u32 c = threadIdx.x; c < r.p.chunks; c += THREADS) await_chunk(r.p, c, a.limit_ns, since);
    after_earlier_kernels();
    let_later_kernels_come();
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) afd_unpack8(const __grid_constant__ Packed a) {
    const Row& r = a.row[blockIdx.y];
    after_earlier_kernels();
    let_later_kernels_come();
    for (u32 c = blockIdx.x; c < r.p.chunks; c += gridDim.x) unpack_either(r, c);
}

__device__ __forceinline__ Unit unit_of(const uint4& v) { return {(u64)v.y << 32 | v.x, (u64)v.w << 32 | v.z}; }

template <bool HALF> __device__ __forceinline__ void put_units(const Row& r) {
    const u32 team = threadIdx.x / TEAM, at = threadIdx.x % TEAM, pairs = (r.units + 1) / 2, over = load_word(r.p.over);
    u32 turn = 0;
    for (u32 k = blockIdx.x + team * gridDim.x; k < r.p.bytes; k += THREADS / TEAM * gridDim.x, turn ^= 1) {
        const uint4* in = (const uint4*)r.p.from + (u64)k * r.units;
        const u64 out = r.p.flags + UNITS_AT + 16ull * k * (pairs + WARPS);
        uint4 a[KEPT], b[KEPT];
        const float most = of_team(largest_of<HALF>(in, r.units, a, b), team, turn);
        if (__any_sync(~0u, over)) continue;
        const float inverse = LARGEST / most;
        if (at % 32 == 0) store_unit(out + 16ull * (pairs + at / 32), {__float_as_uint(most / LARGEST), 0});
#pragma unroll
        for (u32 j = 0; j < KEPT; j++)
            if (at + j * TEAM < pairs) store_unit(out + 16ull * (at + j * TEAM), unit_of(narrowed<HALF>(a[j], b[j], inverse)));
        for (u32 i = at + KEPT * TEAM; i < pairs; i += TEAM) {
            uint4 c, d;
            load_pair(in, i, r.units, c, d);
            store_unit(out + 16ull * i, unit_of(narrowed<HALF>(c, d, inverse)));
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) afd_put8_units(const __grid_constant__ Packed a) {
    const Row& r = a.row[blockIdx.y];
    const bool tells = blockIdx.x == 0 && threadIdx.x == 0;
    after_earlier_kernels();
    let_later_kernels_come();
    if (tells && !load_word(r.p.over)) {
        const u32 number = load_word(r.p.counts) + 1;
        store_relaxed(r.p.flags, (u64)number << 32 | r.p.head);
        *(u32*)r.p.counts = number;
    }
    __syncwarp();
    if (r.half) put_units<true>(r);
    else put_units<false>(r);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) afd_wait8_units(const __grid_constant__ Packed a) {
    const Row& r = a.row[blockIdx.y];
    const Part& p = r.p;
    const u32 team = threadIdx.x / TEAM, at = threadIdx.x % TEAM, pairs = (r.units + 1) / 2;
    const bool asks = blockIdx.x == 0 && threadIdx.x == 0;
    const u32 number = asks ? load_word(p.counts) + 1 : 0;
    const Unit none = {~0ull, ~0ull};
    bool told = !asks, begun = false, stop = false;
    u32 why = 0;
    u64 word = 0, since = 0;
    long long looked = 0;
    for (u32 k = blockIdx.x + team * gridDim.x; k < p.bytes && !stop; k += THREADS / TEAM * gridDim.x) {
        const u64 slot = p.flags + UNITS_AT + 16ull * k * (pairs + WARPS), scale_at = slot + 16ull * (pairs + at / 32);
        uint4* out = (uint4*)p.to + (u64)k * r.units;
        float scale = 0;
        for (u32 first = 0; first < pairs && !stop; first += KEPT * TEAM) {
            Unit v[KEPT], s = none;
            u32 missing = 0;
#pragma unroll
            for (u32 j = 0; j < KEPT; j++) missing |= (first + at + j * TEAM < pairs) << j;
            const u32 wanted = missing;
            bool unscaled = first == 0 && at % 32 == 0;
            for (u32 spins = 1;; spins++) {
#pragma unroll
                for (u32 j = 0; j < KEPT; j++) if (missing >> j & 1) v[j] = load_unit(slot + 16ull * (first + at + j * TEAM));
                if (unscaled) s = load_unit(scale_at);
                if (!told) {
                    word = load_relaxed(p.flags);
                    told = (u32)(word >> 32) == number;
                    if (told && (u32)word != p.head) why = MISMATCH;
                }
#pragma unroll
                for (u32 j = 0; j < KEPT; j++) if (missing >> j & 1 && !empty(v[j])) missing &= ~(1u << j);
                if (unscaled && !empty(s)) {
                    unscaled = false;
                    scale = __uint_as_float((u32)s.low);
                }
                if (why || (told && !missing && !unscaled)) break;
                if (spins % LOOK_EVERY == 0 && (why = verdict(p, a.limit_ns, since, looked))) break;
            }
            if (!begun) { after_earlier_kernels(); let_later_kernels_come(); begun = true; }
            stop = __any_sync(~0u, why);  // the warp together, because it shares a scale
            scale = __shfl_sync(~0u, scale, 0);
            if (stop) break;
            if (first == 0 && at % 32 == 0) store_unit(scale_at, none);
#pragma unroll
            for (u32 j = 0; j < KEPT; j++) {
                if (!(wanted >> j & 1)) continue;
                const u32 i = first + at + j * TEAM;
                const uint4 narrow = make_uint4((u32)v[j].low, (u32)(v[j].low >> 32), (u32)v[j].high, (u32)(v[j].high >> 32));
                if (r.half) store_pair<true>(out, i, r.units, narrow, scale);
                else store_pair<false>(out, i, r.units, narrow, scale);
                store_unit(slot + 16ull * i, none);
            }
        }
    }
    if (!begun) { after_earlier_kernels(); let_later_kernels_come(); }
    if (why) give_up(p, why, word);
    if (asks) *(u32*)p.counts = number;
}
