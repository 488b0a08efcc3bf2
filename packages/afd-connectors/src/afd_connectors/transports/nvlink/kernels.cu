// Rows into a peer's memory and out of one's own, each with the number of the exchange, so that nobody asks for them.
//
// A message of a slot is either lines or chunks, by its size, which both sides know:
//   lines   16 bytes of 8 bytes of rows and twice the message's number; each line says by itself that it is there
//   chunks  rows as they are, and per chunk one word of the message's number and its head, written after the rows
// Numbers are counted in device memory by the kernels themselves, so that a graph can be replayed without a host.
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
    u64 lines;   // the slot's lines, in the memory of whoever receives
    u64 counts;  // u32 per chunk, then u32 per block of lines: messages until now
    u64 status;
    u32 bytes, chunk, chunks, head;
};

struct Args {
    u64 limit_ns;
    u32 first, last;  // of the chunks that afd_flags tells
    Part part[8];
};

#define THREADS 512
#define MOST_CHUNKS 128
#define BLOCK_LINES 1024
#define LOOK_EVERY 64
#define FLIGHT 4  // units of a thread that are under way at once
#define TIMED_OUT 1ull
#define MISMATCH 2ull
#define ENDED 3ull

__device__ __forceinline__ void after_earlier_kernels() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void let_later_kernels_come() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ __forceinline__ u64 now_ns() { u64 t; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)); return t; }
__device__ __forceinline__ u64 load_acquire(u64 at) {
    u64 v; asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(at) : "memory"); return v;
}
__device__ __forceinline__ void store_release(u64 at, u64 v) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" :: "l"(at), "l"(v) : "memory");
}
__device__ __forceinline__ u32 load_host(u64 at) {
    u32 v; asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(at) : "memory"); return v;
}
__device__ __forceinline__ u32 count_of(u64 at) {
    u32 v; asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(at) : "memory"); return v;
}
__device__ __forceinline__ uint4 load_line(u64 at) {
    uint4 v;
    asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at) : "memory");
    return v;
}
__device__ __forceinline__ void store_line(u64 at, u32 a, u32 b, u32 flag) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1,%2,%3,%4};"
                 :: "l"(at), "r"(a), "r"(flag), "r"(b), "r"(flag) : "memory");
}

// Writes why a wait was given up; the first reason that the host sees is as good as any other.
__device__ __forceinline__ void give_up(const Part& p, u64 kind, u64 found) {
    Status* s = (Status*)p.status;
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" :: "l"((u64)&s->found), "l"(found) : "memory");
    store_release((u64)&s->error, kind << 32 | p.head);
}

// To be asked now and then by whoever waits: 0 to go on, or why to end. `since` is 0 at first.
__device__ __forceinline__ u64 verdict(const Part& p, u64 limit_ns, u64& since) {
    Status* s = (Status*)p.status;
    u64 now = now_ns();
    if (since == 0) since = now;
    if (load_host((u64)&s->ended)) return ENDED;
    if (load_host((u64)&s->error + 4)) return ENDED;  // another wait gave up: nothing of this link counts any more
    return now - since > limit_ns ? TIMED_OUT : 0;
}

__device__ __forceinline__ void copy_rows(u64 to, u64 from, u32 bytes) {
    uint4* out = (uint4*)to;
    const uint4* in = (const uint4*)from;
    const u32 n = bytes / 16;
    u32 i = threadIdx.x;
    for (; i + (FLIGHT - 1) * THREADS < n; i += FLIGHT * THREADS) {
        uint4 v[FLIGHT];
#pragma unroll
        for (u32 j = 0; j < FLIGHT; j++) v[j] = __ldcg(in + i + j * THREADS);
#pragma unroll
        for (u32 j = 0; j < FLIGHT; j++) out[i + j * THREADS] = v[j];
    }
    uint4 v[FLIGHT];
#pragma unroll
    for (u32 j = 0; j < FLIGHT; j++) if (i + j * THREADS < n) v[j] = __ldcg(in + i + j * THREADS);
#pragma unroll
    for (u32 j = 0; j < FLIGHT; j++) if (i + j * THREADS < n) out[i + j * THREADS] = v[j];
}

__device__ __forceinline__ void tell(const Part& p, u32 chunk) {
    const u64 at = p.counts + 4ull * chunk;
    const u32 number = count_of(at) + 1;
    *(u32*)at = number;
    store_release(p.flags + 8ull * chunk, (u64)number << 32 | p.head);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) afd_put(const __grid_constant__ Args a) {
    const Part& p = a.part[blockIdx.y];
    after_earlier_kernels();
    let_later_kernels_come();
    for (u32 c = blockIdx.x; c < p.chunks; c += gridDim.x) {
        const u64 start = (u64)c * p.chunk;
        const u64 left = p.bytes - start;
        copy_rows(p.to + start, p.from + start, left < p.chunk ? (u32)left : p.chunk);
        __syncthreads();
        if (threadIdx.x == 0) tell(p, c);
    }
}

// After rows that a copy engine moved.
extern "C" __global__ void __launch_bounds__(THREADS, 2) afd_flags(const __grid_constant__ Args a) {
    const Part& p = a.part[blockIdx.y];
    after_earlier_kernels();
    let_later_kernels_come();
    for (u32 c = a.first + threadIdx.x; c < a.last; c += THREADS) tell(p, c);
}

// Whether a chunk came; false when the wait was given up.
__device__ __forceinline__ bool await_chunk(const Part& p, u32 chunk, u64 limit_ns, u64& since) {
    const u64 at = p.counts + 4ull * chunk;
    const u32 number = count_of(at) + 1;
    u64 why = 0, word;
    for (u32 spins = 1;; spins++) {
        word = load_acquire(p.flags + 8ull * chunk);
        if ((u32)(word >> 32) == number) {
            if ((u32)word != p.head) why = MISMATCH;
            break;
        }
        if (spins % LOOK_EVERY == 0 && (why = verdict(p, limit_ns, since))) break;
    }
    if (why == TIMED_OUT || why == MISMATCH) give_up(p, why, word);
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
        const u64 left = p.bytes - start;
        copy_rows(p.to + start, p.from + start, left < p.chunk ? (u32)left : p.chunk);
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
        const u64 left = p.bytes - start;
        copy_rows(p.to + start, p.from + start, left < p.chunk ? (u32)left : p.chunk);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) afd_put_lines(const __grid_constant__ Args a) {
    const Part& p = a.part[blockIdx.y];
    const u32 lines = p.bytes / 8, begin = blockIdx.x * BLOCK_LINES;
    after_earlier_kernels();
    let_later_kernels_come();
    if (begin >= lines) return;
    const u64 at = p.counts + 4ull * (MOST_CHUNKS + blockIdx.x);
    const u32 number = count_of(at) + 1;
    const uint2* in = (const uint2*)p.from;
    uint2 v[BLOCK_LINES / THREADS];
#pragma unroll
    for (u32 j = 0; j < BLOCK_LINES / THREADS; j++) {
        const u32 i = begin + threadIdx.x + j * THREADS;
        if (i < lines) v[j] = __ldcg(in + i);
    }
    if (begin == 0 && threadIdx.x == 0) store_line(p.lines, p.head, 0, number);
#pragma unroll
    for (u32 j = 0; j < BLOCK_LINES / THREADS; j++) {
        const u32 i = begin + threadIdx.x + j * THREADS;
        if (i < lines) store_line(p.lines + 16ull * (i + 1), v[j].x, v[j].y, number);
    }
    __syncthreads();
    if (threadIdx.x == 0) *(u32*)at = number;
}

// The line once it is there; false when the wait was given up.
__device__ __forceinline__ bool await_line(const Part& p, u64 at, u32 number, u64 limit_ns, u64& since, uint4& v) {
    for (u32 spins = 1;; spins++) {
        v = load_line(at);
        if (v.y == number && v.w == number) return true;
        if (spins % LOOK_EVERY == 0) {
            const u64 why = verdict(p, limit_ns, since);
            if (why == TIMED_OUT) give_up(p, why, (u64)v.y << 32);
            if (why) return false;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) afd_wait_lines(const __grid_constant__ Args a) {
    const Part& p = a.part[blockIdx.y];
    const u32 lines = p.bytes / 8, begin = blockIdx.x * BLOCK_LINES;
    if (begin >= lines) { after_earlier_kernels(); return; }
    const u64 at = p.counts + 4ull * (MOST_CHUNKS + blockIdx.x);
    const u32 number = count_of(at) + 1;
    u64 since = 0;
    uint4 v[BLOCK_LINES / THREADS];
    bool there = true;
    if (begin == 0 && threadIdx.x == 0) {
        there = await_line(p, p.lines, number, a.limit_ns, since, v[0]);
        if (there && v[0].x != p.head) {
            give_up(p, MISMATCH, (u64)number << 32 | v[0].x);
            there = false;
        }
    }
#pragma unroll
    for (u32 j = 0; j < BLOCK_LINES / THREADS; j++) {
        const u32 i = begin + threadIdx.x + j * THREADS;
        if (there && i < lines) there = await_line(p, p.lines + 16ull * (i + 1), number, a.limit_ns, since, v[j]);
    }
    after_earlier_kernels();
    let_later_kernels_come();
    uint2* out = (uint2*)p.to;
#pragma unroll
    for (u32 j = 0; j < BLOCK_LINES / THREADS; j++) {
        const u32 i = begin + threadIdx.x + j * THREADS;
        if (there && i < lines) out[i] = make_uint2(v[j].x, v[j].z);
    }
    __syncthreads();
    if (threadIdx.x == 0) *(u32*)at = number;
}
