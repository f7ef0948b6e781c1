// What the kernel of a step is written in: loops over entries, sums, and matrix products, by all threads of a block.
//
// A block is a network, or one of a TEAM that share the examples of its batch, alone with its multiprocessor. On a GPU,
// products are taken by tensor cores. Without one (a C++ compiler), a block is a single thread and every loop is plain,
// or, where somebody stands in for threads (MANY_THREADS), as many as on a GPU. This is how a step is tested where there
// is none.

#ifdef __CUDACC__
#define MANY_THREADS
#define DEVICE __device__ __forceinline__
#define SYNC() __syncthreads()
#define TEAM_SYNC()                                                 \
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); \
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory")
#define ALIKE(type, name, count) __shared__ type name[count]
#define ROOM(first, count)
#define WRITES(first, count)
#define READS(first, count)
#define SHARED(type, name, count) extern __shared__ type name[]
#define ATOMIC_ADD(place, amount) atomicAdd(&(place), amount)
#if TEAM > 1
#define IN_TEAMS __cluster_dims__(TEAM, 1, 1)
#else
#define IN_TEAMS
#endif
#undef INFINITY
#undef NAN
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#else
#include <cmath>
#define DEVICE inline
#include <cstring>
// Who runs it there gives a meaning to SYNC, TEAM_SYNC, blockIdx and own_rank, to ITEM, ROOM, WRITES, READS, ATOMIC_ADD.
#define SHARED(type, name, count)      \
  static type name##_[TEAM][(count) + 1]; \
  type* name = name##_[own_rank];       \
  ROOM(name, count)
#define ALIKE SHARED
#define IN_TEAMS
#define __global__
#define __launch_bounds__(threads)
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
#endif

// A product that is rounded, whatever it is added to; and a number with only the upper half of its digits.
#ifdef __CUDACC__
DEVICE float rounded_product(float a, float b) { return __fmul_rn(a, b); }
DEVICE float without_lower_half(float x) { return __int_as_float(__float_as_int(x) & -4096); }
#else
static inline float rounded_product(float a, float b) { return a * b; }
static inline float without_lower_half(float x) {
  int bits;
  std::memcpy(&bits, &x, 4);
  bits &= -4096;
  std::memcpy(&x, &bits, 4);
  return x;
}
#endif

// Several numbers of one type.
template <class T, int N>
struct Many {
  T of[N];
  DEVICE T& operator[](int n) { return of[n]; }
  DEVICE const T& operator[](int n) const { return of[n]; }
};

struct Sum {
  static DEVICE float none() { return 0.0f; }
  static DEVICE float both(float a, float b) { return a + b; }
};
struct Max {
  static DEVICE float none() { return -INFINITY; }
  static DEVICE float both(float a, float b) { return b > a || b != b ? b : a; }
};
struct Min {
  static DEVICE float none() { return INFINITY; }
  static DEVICE float both(float a, float b) { return b < a || b != b ? b : a; }
};
struct All {
  static DEVICE float none() { return 1.0f; }
  static DEVICE float both(float a, float b) { return a * b; }
};

#ifdef MANY_THREADS

constexpr int WARPS = THREADS / 32;

// get(i) for every i below N, and then put(i, what was got): several are read before the first is written. Of BLOCKS
// that share the work, this is one.
template <int N, int TOGETHER, int BLOCKS = 1, class Get, class Put>
DEVICE void each(Get get, Put put, int block = 0) {
  constexpr int STEP = THREADS * BLOCKS;
  for (int first = block * THREADS + threadIdx.x; first < N; first += STEP * TOGETHER) {
    decltype(get(0)) got[TOGETHER];
#pragma unroll
    for (int u = 0; u < TOGETHER; ++u)
      if (first + u * STEP < N) got[u] = get(first + u * STEP);
#pragma unroll
    for (int u = 0; u < TOGETHER; ++u)
      if (first + u * STEP < N) put(first + u * STEP, got[u]);
  }
}

template <class Way>
DEVICE float across_warp(float value) {
#pragma unroll
  for (int step = 16; step; step /= 2) value = Way::both(value, __shfl_xor_sync(~0u, value, step));
  return value;
}

// For every i below KEPT, get(i, j) for every j below GONE brought together, and then put(i, that).
template <class Way, int KEPT, int GONE, class Get, class Put>
DEVICE void total(Get get, Put put) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if constexpr (GONE <= 8 || KEPT >= THREADS) {  // a thread each
    for (int i = threadIdx.x; i < KEPT; i += THREADS) {
      float value = Way::none();
      for (int j = 0; j < GONE; ++j) value = Way::both(value, get(i, j));
      put(i, value);
    }
  } else if constexpr (KEPT >= WARPS / 2 || GONE <= 256) {  // a warp each
    for (int i = warp; i < KEPT; i += WARPS) {
      float value = Way::none();
#pragma unroll 8
      for (int j = lane; j < GONE; j += 32) value = Way::both(value, get(i, j));
      value = across_warp<Way>(value);
      if (!lane) put(i, value);
    }
  } else {  // all threads each
    ALIKE(float, parts, WARPS);
    for (int i = 0; i < KEPT; ++i) {
      float value = Way::none();
#pragma unroll 4
      for (int j = threadIdx.x; j < GONE; j += THREADS) value = Way::both(value, get(i, j));
      value = across_warp<Way>(value);
      SYNC();
      if (!lane) {
        WRITES(parts + warp, 1);
        parts[warp] = value;
      }
      SYNC();
      if (!warp) {
        if (lane < WARPS) READS(parts + lane, 1);
        value = across_warp<Way>(lane < WARPS ? parts[lane] : Way::none());
        if (!lane) put(i, value);
      }
    }
  }
}

#ifdef __CUDACC__

DEVICE unsigned rounded(float x) {
  unsigned r;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
  return r;
}

DEVICE void multiply(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#endif

// A factor as tensor cores take it: rounded, and what is lost by that.
template <int N, bool EXACT>
struct Fragment {
  unsigned high[N], low[N];
  DEVICE void set(int n, float x) {
    high[n] = rounded(x);
    if constexpr (EXACT) low[n] = rounded(x - __uint_as_float(high[n]));
  }
};

// The sums of some steps, eight products each, of a tile of MT times 16 rows and NT times 8 columns for each of PLACES.
//
// Beyond its last row, column or product a matrix is read there once more, and products beyond the last are of zeros: a
// read that is only made on a condition is waited for before the next is begun.
template <int ROWS, int COLUMNS, int DEPTH, int PLACES, bool EXACT, int MT, int NT, class A, class B>
DEVICE void accumulate(float (&sum)[PLACES][MT][NT][4], int row, int column, int first, int last, A a, B b) {
  const int lane = threadIdx.x % 32, group = lane / 4, member = lane % 4;
  int rows[MT][2], columns[NT];
#pragma unroll
  for (int m = 0; m < MT; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = row + m * 16 + group + h * 8;
      rows[m][h] = ROWS % (16 * MT) == 0 || r < ROWS ? r : ROWS - 1;
    }
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    const int c = column + n * 8 + group;
    columns[n] = COLUMNS % (8 * NT) == 0 || c < COLUMNS ? c : COLUMNS - 1;
  }
#pragma unroll 2
  for (int k = first; k < last; k += 8) {
    float ours[MT][4], theirs[PLACES][NT][2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int d = k + member + h * 4;
      const bool there = DEPTH % 8 == 0 || d < DEPTH;
      const int at = there ? d : DEPTH - 1;
#pragma unroll
      for (int m = 0; m < MT; ++m)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float x = a(rows[m][i], at);
          ours[m][h * 2 + i] = there ? x : 0.0f;
        }
#pragma unroll
      for (int p = 0; p < PLACES; ++p)
#pragma unroll
        for (int n = 0; n < NT; ++n) theirs[p][n][h] = b(at, columns[n], p);
    }
    Fragment<4, EXACT> left[MT];
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) left[m].set(i, ours[m][i]);
#pragma unroll
    for (int p = 0; p < PLACES; ++p)
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        Fragment<2, EXACT> right;
#pragma unroll
        for (int h = 0; h < 2; ++h) right.set(h, theirs[p][n][h]);
#pragma unroll
        for (int m = 0; m < MT; ++m) {
          if constexpr (EXACT) {
            multiply(sum[p][m][n], left[m].low, right.high);
            multiply(sum[p][m][n], left[m].high, right.low);
          }
          multiply(sum[p][m][n], left[m].high, right.high);
        }
      }
  }
}

// For every row and column, the sums over k of a(row, k) times b(k, column, place), for all places: put(row, column, sums).
template <int ROWS, int COLUMNS, int DEPTH, int PLACES, bool EXACT, int MT, int NT, class A, class B, class Put>
DEVICE void product(A a, B b, Put put) {
  const int warp = threadIdx.x / 32, group = threadIdx.x % 32 / 4, member = threadIdx.x % 4;
  constexpr int ACROSS = (COLUMNS + 8 * NT - 1) / (8 * NT), TILES = (ROWS + 16 * MT - 1) / (16 * MT) * ACROSS;
  for (int tile = warp; tile < TILES; tile += WARPS) {
    const int row = tile / ACROSS * 16 * MT, column = tile % ACROSS * 8 * NT;
    float sum[PLACES][MT][NT][4] = {};
    accumulate<ROWS, COLUMNS, DEPTH, PLACES, EXACT, MT, NT>(sum, row, column, 0, DEPTH, a, b);
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
      for (int n = 0; n < NT; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int r = row + m * 16 + group + i / 2 * 8, c = column + n * 8 + member * 2 + i % 2;
          if (r < ROWS && c < COLUMNS) {
            Many<float, PLACES> found;
#pragma unroll
            for (int p = 0; p < PLACES; ++p) found[p] = sum[p][m][n][i];
            put(r, c, found);
          }
        }
  }
}

// The same for long sums of few rows and columns: pieces of them are summed beside one another, in `room`, and then
// in their order. There is a barrier in the midst of it.
template <int ROWS, int COLUMNS, int DEPTH, bool EXACT, int MT, int NT, int PIECES, class A, class B, class Put>
DEVICE void long_product(float* room, A a, B b, Put put) {
  const int warp = threadIdx.x / 32, group = threadIdx.x % 32 / 4, member = threadIdx.x % 4;
  constexpr int ACROSS = (COLUMNS + 8 * NT - 1) / (8 * NT), TILES = (ROWS + 16 * MT - 1) / (16 * MT) * ACROSS;
  constexpr int LENGTH = ((DEPTH + 7) / 8 + PIECES - 1) / PIECES * 8;
  for (int unit = warp; unit < TILES * PIECES; unit += WARPS) {
    const int tile = unit % TILES, piece = unit / TILES;
    const int row = tile / ACROSS * 16 * MT, column = tile % ACROSS * 8 * NT;
    const int first = piece * LENGTH, last = first + LENGTH < DEPTH ? first + LENGTH : DEPTH;
    float sum[1][MT][NT][4] = {};
    accumulate<ROWS, COLUMNS, DEPTH, 1, EXACT, MT, NT>(sum, row, column, first, last, a, b);
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
      for (int n = 0; n < NT; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int r = row + m * 16 + group + i / 2 * 8, c = column + n * 8 + member * 2 + i % 2;
          if (r < ROWS && c < COLUMNS) {
            const int place = (piece * ROWS + r) * COLUMNS + c;
            WRITES(room + place, 1);
            room[place] = sum[0][m][n][i];
          }
        }
  }
  SYNC();
  for (int i = threadIdx.x; i < ROWS * COLUMNS; i += THREADS) {
    Many<float, 1> found = {{0.0f}};
#pragma unroll
    for (int piece = 0; piece < PIECES; ++piece) {
      READS(room + piece * ROWS * COLUMNS + i, 1);
      found[0] += room[piece * ROWS * COLUMNS + i];
    }
    put(i / COLUMNS, i % COLUMNS, found);
  }
}

#else

// What a thread does before it waits for others is an item; in which order items are done is not known.

template <int N, int TOGETHER, int BLOCKS = 1, class Get, class Put>
static void each(Get get, Put put, int block = 0) {
  for (int i = block; i < N; i += BLOCKS) {
    ITEM();
    put(i, get(i));
  }
}

template <class Way, int KEPT, int GONE, class Get, class Put>
static void total(Get get, Put put) {
  for (int i = 0; i < KEPT; ++i) {
    ITEM();
    float value = Way::none();
    for (int j = 0; j < GONE; ++j) value = Way::both(value, get(i, j));
    put(i, value);
  }
}

template <int DEPTH, int PLACES, class A, class B>
static Many<float, PLACES> summed(int row, int column, A a, B b) {
  Many<float, PLACES> found = {};
  for (int p = 0; p < PLACES; ++p)
    for (int k = 0; k < DEPTH; ++k) found[p] += a(row, k) * b(k, column, p);
  return found;
}

template <int ROWS, int COLUMNS, int DEPTH, int PLACES, bool EXACT, int MT, int NT, class A, class B, class Put>
static void product(A a, B b, Put put) {
  for (int row = 0; row < ROWS; ++row)
    for (int column = 0; column < COLUMNS; ++column) {
      ITEM();
      const auto found = summed<DEPTH, PLACES>(row, column, a, b);
      ITEM();
      put(row, column, found);
    }
}

template <int ROWS, int COLUMNS, int DEPTH, bool EXACT, int MT, int NT, int PIECES, class A, class B, class Put>
static void long_product(float* room, A a, B b, Put put) {
  ITEM();
  WRITES(room, PIECES * ROWS * COLUMNS);
  for (int i = 0; i < ROWS * COLUMNS; ++i) room[i] = summed<DEPTH, 1>(i / COLUMNS, i % COLUMNS, a, b)[0];
  SYNC();
  for (int i = 0; i < ROWS * COLUMNS; ++i) {
    ITEM();
    for (int piece = 0; piece < PIECES; ++piece) READS(room + piece * ROWS * COLUMNS + i, 1);
    put(i / COLUMNS, i % COLUMNS, Many<float, 1>{{room[i]}});
  }
}

#endif
