// Rows into a peer's memory and out of one's own, each with the number of the exchange, so that nobody asks for them.
//
// Rows travel as they are in chunks, and per chunk one word of the message's number and its head, written after them;
// those of small messages without chunks, see units.cu.
// Numbers are counted in device memory by the kernels themselves, so that a graph can be replayed without a host.
//
// Once a wait is given up, its window is over until the ranks meet again: nothing of it is sent or told any more, because
// what a graph goes on to compute without the awaited rows is nobody's answer, and the peer may still read the last one.
typedef unsigned int u32;
typedef unsigned long long u64;

struct Status {  // in host memory: the host sees what the device found, and the device what the host decided
    u32 ended;   // by the host: give up every wait
    u32 unused;
    u64 found;   // by the device: the word that was there
    u64 error;   // by the device, after `found`: kind in the upper half, the head that was expected in the lower
};

struct Part {
    u64 from;    // rows to be sent, or the slot's chunks
    u64 to;      // the peer's chunks, or where the rows are wanted
    u64 flags;   // one word per chunk, in the memory of whoever receives
    u64 counts;  // u32 per chunk: messages until now
    u64 over;    // u32 of the window: 0, or why nothing of it counts any more
    u64 status;
    u32 bytes, chunk, chunks, head;
};

struct Args {
    u64 limit_ns;
    Part part[8];
};

#define THREADS 512
#define FLIGHT 8  // units of a thread that are under way at once
#define LOOK_EVERY 32
// Between two looks at host memory: half a millisecond for the first warp of a part, an eighth of a second for the first
// of other blocks and a second for the rest, who learn from it what it found, unless it has what it waits for. A look
// takes a microsecond, and those of many warps one after the other: where 64 looked all the time, they and the peer that
// waited for them were many times slower.
#define LOOK_CYCLES 1000000
#define RARE_CYCLES 250000000
#define RAREST_CYCLES 2000000000
#define TIMED_OUT 1u
#define MISMATCH 2u
#define ENDED 3u

__device__ __forceinline__ void after_earlier_kernels() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void let_later_kernels_come() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ __forceinline__ u64 now_ns() { u64 t; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)); return t; }
__device__ __forceinline__ u64 load_acquire(u64 at) {
    u64 v; asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(at) : "memory"); return v;
}
__device__ __forceinline__ void store_release(u64 at, u64 v) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" :: "l"(at), "l"(v) : "memory");
}
__device__ __forceinline__ u32 load_word(u64 at) {
    u32 v; asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(at) : "memory"); return v;
}
__device__ __forceinline__ uint4 load_rows(const uint4* at) {
    uint4 v;
    asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at) : "memory");
    return v;
}

// Ends the window, here first. The host is told once, of the first reason.
__device__ __noinline__ void give_up(const Part& p, u32 kind, u64 found) {
    if (atomicCAS((u32*)p.over, 0u, kind)) return;
    Status* s = (Status*)p.status;
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" :: "l"((u64)&s->found), "l"(found) : "memory");
    store_release((u64)&s->error, (u64)kind << 32 | p.head);
}

// To be asked now and then by whoever waits: 0 to go on, or why to end. `since` and `looked` are 0 at first.
__device__ __forceinline__ u32 verdict(const Part& p, u64 limit_ns, u64& since, long long& looked) {
    const u32 over = load_word(p.over);
    if (over) return over;
    const long long cycles = clock64();
    if (looked == 0) looked = cycles;
    if (cycles - looked < (threadIdx.x >= 32 ? RAREST_CYCLES : blockIdx.x ? RARE_CYCLES : LOOK_CYCLES)) return 0;
    looked = cycles;
    const u64 now = now_ns();
    if (since == 0) since = now;
    if (load_word((u64)&((Status*)p.status)->ended)) return ENDED;
    return now - since > limit_ns ? TIMED_OUT : 0;
}

// False when nothing was written because the window is over, which is asked while the first rows are being read.
__device__ __forceinline__ bool copy_rows(u64 to, u64 from, u32 bytes, u64 over_at) {
    uint4* out = (uint4*)to;
    const uint4* in = (const uint4*)from;
    const u32 n = bytes / 16;
    u32 over = over_at ? load_word(over_at) : 0;
    for (u32 i = threadIdx.x; i < n; i += FLIGHT * THREADS) {
        uint4 v[FLIGHT];
        if (i + (FLIGHT - 1) * THREADS < n) {
#pragma unroll
            for (u32 j = 0; j < FLIGHT; j++) v[j] = load_rows(in + i + j * THREADS);
            if (over) return false;
#pragma unroll
            for (u32 j = 0; j < FLIGHT; j++) out[i + j * THREADS] = v[j];
        } else {
#pragma unroll
            for (u32 j = 0; j < FLIGHT; j++) if (i + j * THREADS < n) v[j] = load_rows(in + i + j * THREADS);
            if (over) return false;
#pragma unroll
            for (u32 j = 0; j < FLIGHT; j++) if (i + j * THREADS < n) out[i + j * THREADS] = v[j];
        }
    }
    return over == 0;
}

__device__ __forceinline__ u32 size_of(const Part& p, u32 chunk) {
    const u32 left = p.bytes - chunk * p.chunk;
    return left < p.chunk ? left : p.chunk;
}

__device__ __forceinline__ void tell(const Part& p, u32 chunk, u32 number) {
    *(u32*)(p.counts + 4ull * chunk) = number;
    store_release(p.flags + 8ull * chunk, (u64)number << 32 | p.head);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) afd_put(const __grid_constant__ Args a) {
    const Part& p = a.part[blockIdx.y];
    after_earlier_kernels();
    let_later_kernels_come();
    for (u32 c = blockIdx.x; c < p.chunks; c += gridDim.x) {
        const u64 start = (u64)c * p.chunk;
        const u32 number = load_word(p.counts + 4ull * c) + 1;
        const bool sent = copy_rows(p.to + start, p.from + start, size_of(p, c), p.over);
        if (!__syncthreads_and(sent)) return;
        if (threadIdx.x == 0) tell(p, c, number);
    }
}

// Whether a chunk came; false when the wait was given up.
__device__ __forceinline__ bool await_chunk(const Part& p, u32 chunk, u64 limit_ns, u64& since) {
    const u64 at = p.counts + 4ull * chunk;
    const u32 number = load_word(at) + 1;
    u64 word;
    u32 why = 0;
    long long looked = 0;
    for (u32 spins = 1;; spins++) {
        word = load_acquire(p.flags + 8ull * chunk);
        if ((u32)(word >> 32) == number) {
            if ((u32)word != p.head) why = MISMATCH;
            break;
        }
        if (spins % LOOK_EVERY == 0 && (why = verdict(p, limit_ns, since, looked))) break;
    }
    if (why) give_up(p, why, word);
    *(u32*)at = number;
    return why == 0;
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) afd_wait(const __grid_constant__ Args a) {
    const Part& p = a.part[blockIdx.y];
    __shared__ u32 lost;
    u64 since = 0;
    bool first = true;
    for (u32 c = blockIdx.x; c < p.chunks; c += gridDim.x) {
        if (threadIdx.x == 0) lost = !await_chunk(p, c, a.limit_ns, since);
        if (first) { after_earlier_kernels(); let_later_kernels_come(); first = false; }
        __syncthreads();
        if (lost) return;
        const u64 start = (u64)c * p.chunk;
        copy_rows(p.to + start, p.from + start, size_of(p, c), 0);
        __syncthreads();
    }
}

// The same for rows that stay where they arrive: one block.
extern "C" __global__ void __launch_bounds__(THREADS, 2) afd_await(const __grid_constant__ Args a) {
    const Part& p = a.part[blockIdx.y];
    u64 since = 0;
    for (u32 c = threadIdx.x; c < p.chunks; c += THREADS) await_chunk(p, c, a.limit_ns, since);
    after_earlier_kernels();
    let_later_kernels_come();
}

// Out of the slot once afd_await is over, where many blocks that wait would keep others from computing.
extern "C" __global__ void __launch_bounds__(THREADS, 2) afd_copy(const __grid_constant__ Args a) {
    const Part& p = a.part[blockIdx.y];
    after_earlier_kernels();
    let_later_kernels_come();
    for (u32 c = blockIdx.x; c < p.chunks; c += gridDim.x) {
        const u64 start = (u64)c * p.chunk;
        copy_rows(p.to + start, p.from + start, size_of(p, c), 0);
    }
}
