// What stands in for the threads of a network's blocks where there is no GPU: each goes on by itself until it waits.
//
// Threads of a warp meet where tensor cores multiply and where they look at one another's numbers, all threads of a
// block at a barrier, and all of a network where its blocks meet. What a thread does between two barriers is in no order
// with what others do there. PEOPLE is how many threads a block has here: one, for which every loop is plain, or THREADS.

#include <cstdlib>
#include <cstring>
#include <ucontext.h>

#if PEOPLE > 1
#define MANY_THREADS
#endif
#define SYNC() meet(blocks[own_rank], [] { ++waits[own_rank]; })
#define TEAM_SYNC() meet(everybody, [] { ++epoch; for (long& each : waits) ++each; })

static struct { int x; } threadIdx;
static int self;  // which thread of all it is

// A place where so many threads wait for one another.
struct Meeting {
  int size, arrived;
  long round;
};
struct Thread {
  ucontext_t place;
  void* stack;
  bool done;
  Meeting* waits_at;
  long since;
};
// What a thread brings to its warp, and takes from it.
struct Lane {
  unsigned a[4], b[2];
  float sum[4], number;
};
constexpr int ALL = PEOPLE * TEAM;
static Meeting everybody, blocks[TEAM], warps[ALL / 32 + 1];
static Thread threads[ALL];
static Lane lanes[ALL];
static ucontext_t scheduler;

// Wait until all are here; whoever comes last does what is to be done once.
template <class Last>
static void meet(Meeting& meeting, Last last) {
  if (++meeting.arrived == meeting.size) {
    last();
    meeting.arrived = 0;
    ++meeting.round;
    return;
  }
  Thread& here = threads[self];
  here.waits_at = &meeting;
  here.since = meeting.round;
  swapcontext(&here.place, &scheduler);
}

static float as_float(unsigned bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
static float __uint_as_float(unsigned bits) { return as_float(bits); }

// To the nearest number with ten digits behind the point, halves away from zero.
static unsigned rounded(float x) {
  unsigned bits;
  memcpy(&bits, &x, 4);
  return x - x == 0.0f ? (bits + 0x1000u) & ~0x1fffu : bits;
}

static float __shfl_xor_sync(unsigned, float value, int step) {
  const int first = self / 32 * 32;
  static float swapped[ALL];
  lanes[self].number = value;
  meet(warps[self / 32], [&] {
    for (int n = 0; n < 32; ++n) swapped[first + n] = lanes[first + (n ^ step)].number;
  });
  return swapped[self];
}

// mma.m16n8k8: which thread has which entries is in NVIDIA's manual of its instructions (PTX, "matrix fragments").
static void multiply(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  const int first = self / 32 * 32;
  memcpy(lanes[self].a, a, sizeof a);
  memcpy(lanes[self].b, b, sizeof b);
  memcpy(lanes[self].sum, sum, sizeof sum);
  meet(warps[self / 32], [&] {
    float left[16][8], right[8][8];
    for (int n = 0; n < 32; ++n) {
      const Lane& lane = lanes[first + n];
      for (int i = 0; i < 4; ++i) left[n / 4 + i % 2 * 8][n % 4 + i / 2 * 4] = as_float(lane.a[i]);
      for (int i = 0; i < 2; ++i) right[n % 4 + i * 4][n / 4] = as_float(lane.b[i]);
    }
    for (int n = 0; n < 32; ++n)
      for (int i = 0; i < 4; ++i)
        for (int k = 0; k < 8; ++k)
          lanes[first + n].sum[i] += left[n / 4 + i / 2 * 8][k] * right[k][n % 4 * 2 + i % 2];
  });
  memcpy(sum, lanes[self].sum, sizeof sum);
}

static void (*life)(void**);
static void** all_given;
static void live() {
  life(all_given);
  threads[self].done = true;
}

// All threads of a network, to their ends; whether they came there, and did not wait for one another in vain.
static bool together(void (*function)(void**), void** given, int network) {
  life = function;
  all_given = given;
  everybody = {ALL, 0, 0};
  for (Meeting& block : blocks) block = {PEOPLE, 0, 0};
  for (Meeting& warp : warps) warp = {32, 0, 0};
  for (Thread& thread : threads) {
    constexpr size_t size = 1 << 17;
    if (!thread.stack) thread.stack = malloc(size);
    getcontext(&thread.place);
    thread.place.uc_stack.ss_sp = thread.stack;
    thread.place.uc_stack.ss_size = size;
    thread.place.uc_link = &scheduler;
    makecontext(&thread.place, live, 0);
    thread.done = false;
    thread.waits_at = nullptr;
  }
  for (bool moved = true; moved;) {
    moved = false;
    for (int n = 0; n < ALL; ++n) {
      Thread& thread = threads[n];
      if (thread.done || (thread.waits_at && thread.waits_at->round == thread.since)) continue;
      thread.waits_at = nullptr;
      self = n;
      own_rank = n / PEOPLE;
      threadIdx.x = n % PEOPLE;
      blockIdx.x = network * TEAM + own_rank;
      item = PEOPLE > 1 ? n : item + 1;
      moved = true;
      swapcontext(&scheduler, &thread.place);
    }
  }
  for (const Thread& thread : threads)
    if (!thread.done) return false;
  return true;
}
