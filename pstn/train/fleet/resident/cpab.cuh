// The flow of a CPAB family in the plane and its gradient, a thread a point: the walk of pstn/kernels/cpab.py, whose
// mathematics and names hold here too. A box has the coordinates p and q along its diagonals; velocities are a function
// of their place in the lattice, the boxes' centres first, then their corners, with a rim of boxes around.

namespace cpab {

// The longest step in units of 1 / spectral radius; how far beyond an edge a step may end, and be corrected; more steps
// than any point takes; how much the derivative of a stretch may squeeze; the largest number an adjoint is taken for.
constexpr float REACH = 1.0f, SLACK = 1.0f / (1 << 22), NEAR = 2e-3f, TINY = 1e-30f;
constexpr int MOST = 65536, LAST = 11;
constexpr double SQUEEZE = 1 << 28, LARGEST = 1e30;

// 1 / k!
#define OVER_FACTORIALS                                                                                       \
  constexpr float OVER[13] = {1.0f,        1.0f,         1.0f / 2,      1.0f / 6,       1.0f / 24,       \
                              1.0f / 120,  1.0f / 720,   1.0f / 5040,   1.0f / 40320,   1.0f / 362880,   \
                              1.0f / 3628800, 1.0f / 39916800, 1.0f / 479001600}

// A sum of two numbers, so that what is lost in a step does not add up.
struct Double {
  float high, low;
  DEVICE void add(float more) {
    const float total = high + more, part = total - high;
    low += (high - (total - part)) + (more - part);
    high = total + low;
    low -= high - total;
  }
};

// The derivative of a stretch by its start.
struct Slope {
  double pp = 1.0, pq = 0.0, qp = 0.0, qq = 1.0;
  DEVICE bool squeezed() const {
    const double size = pp * pp + pq * pq + (qp * qp + qq * qq), volume = fabs(pp * qq - pq * qp);
    return fmax(size, 1.0) > SQUEEZE * fmin(volume, 1.0);
  }
};

// Where a point is: its box, where in it, in which triangle, and how much time is left.
struct Point {
  int i, j;
  Double p, q, left;
  float sp, sq, reach;
};

// What a step comes to.
struct Step {
  float a, b, c, sp, sq, v_p, v_q, w_p, w_q, m_pp, m_pq, m_qp, m_qq, trace, minus_det;
  int at_a, at_b, at_c;
  float s, f_1, f_2, g_1, g_2, by_p, by_q;
  bool good, crosses, by_b, by_c;
  DEVICE Slope slope() const { return {g_1 + double(g_2 * m_pp), g_2 * m_pq, g_2 * m_qp, g_1 + double(g_2 * m_qq)}; }
};

// The box of a normalised position along an axis of N, and where in it as a sum of two numbers, the centre at zero.
template <int N>
DEVICE int box_of(float x, float& place, float& rest) {
  const float one = x + 1.0f, half = N * 0.5f, cell = rounded_product(one, half);
  // what rounding took: the upper half of the digits times a small whole number is exact, and so is the lower half
  const float upper = without_lower_half(one);
  rest = ((rounded_product(upper, half) - cell) + rounded_product(one - upper, half)) +
         rounded_product(x - (one - 1.0f), half);
  const float box = cell == N ? N - 1.0f : floorf(cell);  // the right border belongs to the last box inside
  place = cell - box - 0.5f;
  return int(box);
}

template <int N, int M>
DEVICE Point begin(float x, float y) {
  Point at;
  float xi, xi_low, eta, eta_low;
  at.i = box_of<N>(x, xi, xi_low);
  at.j = box_of<M>(y, eta, eta_low);
  at.p = {xi, xi_low + eta_low};
  at.p.add(eta);
  at.q = {xi, xi_low - eta_low};
  at.q.add(-eta);
  at.sq = at.q.high >= 0.0f ? 1.0f : -1.0f;
  at.sp = at.p.high == 0.0f ? -at.sq : at.p.high > 0.0f ? 1.0f : -1.0f;
  at.left = {1.0f, 0.0f};
  at.reach = 1.0f;
  return at;
}

// The first root of the parabola gap + first t + second t^2 / 2 where it falls, without cancellation.
DEVICE float root(float gap, float first, float second) {
  // what turns round first must get beyond the place where it is, or no time would pass
  gap = fmaxf(gap + 0.5f * SLACK, 0.0f) + (first < 0.0f ? 0.0f : 0.125f * SLACK);
  const float square = first * first - 2.0f * gap * second, big = sqrtf(fmaxf(square, 0.0f)) + fabsf(first);
  if (first < 0.0f) return square < 0.0f || big < TINY ? 1e30f : 2.0f * gap / fmaxf(big, TINY);
  return second < -TINY ? big / fmaxf(-second, TINY) : 1e30f;
}

// The step to a root by Halley's method, and none where the function does not fall.
DEVICE float halley(float value, float slope, float bend) {
  const float below = value * bend - 2.0f * slope * slope;
  const float step = 2.0f * value * slope / (below == 0.0f ? 1.0f : below);
  return slope < 0.0f && fabsf(step) < 1e30f ? step : 0.0f;
}

// How far a step of time s may lie beyond an edge, by the Bernstein points of a cubic.
DEVICE float beyond(float height, float ahead, float first, float second, float last, float s, float turn) {
  const float third = s * (1.0f / 3);
  const float rest = s * (2.7182818f / 384) * turn * turn * (turn * fabsf(first) + s * fabsf(second));
  const float lowest = fminf(height + third * first, ahead - third * last) - rest;
  return fminf(height, 0.0f) - fminf(lowest, ahead);
}

// A box's column or row in the lattice, that of the rim for all beyond.
DEVICE int rim(int box, int n) { return box < 0 ? 0 : box < n ? box + 1 : n + 1; }

// The next step of a point.
template <int N, int M, class Velocity>
DEVICE Step next(const Point& at, Velocity velocity) {
  Step t;
  const float sp = t.sp = at.sp, sq = t.sq = at.sq;
  // the triangle: velocities c at the box's centre, a at the corner where |p| = 1, b where |q| = 1
  const int column = rim(at.i, N), row = rim(at.j, M);
  const int right_p = sp > 0.0f, right_q = sq > 0.0f, corners = (N + 2) * (M + 2);
  t.at_c = (row * (N + 2) + column) * 2;
  t.at_a = (corners + (row + right_p) * (N + 3) + column + right_p) * 2;
  t.at_b = (corners + (row + 1 - right_q) * (N + 3) + column + right_q) * 2;
  const float c_p = velocity(t.at_c), c_q = velocity(t.at_c + 1), a_p = velocity(t.at_a), a_q = velocity(t.at_a + 1);
  const float b_p = velocity(t.at_b), b_q = velocity(t.at_b + 1);
  const float a = t.a = sp * at.p.high, b = t.b = sq * at.q.high, c = t.c = (1.0f - fmaxf(a, b)) - fminf(a, b);
  // the velocity, the matrix of its slopes, and this times the velocity
  const float v_p = t.v_p = c_p * c + (a_p * a + b_p * b), v_q = t.v_q = c_q * c + (a_q * a + b_q * b);
  const float m_pp = t.m_pp = sp * (a_p - c_p), m_pq = t.m_pq = sq * (b_p - c_p);
  const float m_qp = t.m_qp = sp * (a_q - c_q), m_qq = t.m_qq = sq * (b_q - c_q);
  const float w_p = t.w_p = m_pp * v_p + m_pq * v_q, w_q = t.w_q = m_qp * v_p + m_qq * v_q;
  const float trace = t.trace = m_pp + m_qq, minus_det = t.minus_det = m_pq * m_qp - m_pp * m_qq;
  const float radius = fabsf(trace) + sqrtf(fabsf(minus_det));
  const float limit = fminf(fminf(at.left.high, at.reach), REACH / fmaxf(radius, TINY));

  // the edge that is met first: a = 0, b = 0 or c = 0, with its derivatives
  const float a_1 = sp * v_p, a_2 = sp * w_p, b_1 = sq * v_q, b_2 = sq * w_q, c_1 = -(a_1 + b_1), c_2 = -(a_2 + b_2);
  const float t_a = root(a, a_1, a_2), t_b = root(b, b_1, b_2), t_c = root(c, c_1, c_2);
  const bool by_c = t.by_c = t_c < fminf(t_a, t_b), by_b = t.by_b = t_b < t_a && !by_c;
  float s = fminf(fminf(t_a, t_b), t_c);
  const float h = (by_c ? c : by_b ? b : a) + 0.5f * SLACK;
  const float h_1 = by_c ? c_1 : by_b ? b_1 : a_1, h_2 = by_c ? c_2 : by_b ? b_2 : a_2;
  const bool leaving = s < 1.25f * limit;
  s = fminf(s, limit);
  if (leaving) {  // a better estimate of the time, by a polynomial of order six
    const float h_3 = trace * h_2 + minus_det * h_1, h_4 = trace * h_3 + minus_det * h_2;
    const float h_5 = trace * h_4 + minus_det * h_3, h_6 = trace * h_5 + minus_det * h_4;
    const float terms[7] = {h, h_1, h_2 * 0.5f, h_3 * (1.0f / 6), h_4 * (1.0f / 24), h_5 * (1.0f / 120),
                            h_6 * (1.0f / 720)};
    float value = terms[6], slope = 0.0f, bend = 0.0f;
#pragma unroll
    for (int k = 5; k >= 0; --k) {
      bend = bend * s + slope;
      slope = slope * s + value;
      value = value * s + terms[k];
    }
    s = fminf(fmaxf(s + halley(value, slope, 2.0f * bend), 0.5f * s), limit);
  }

  // b(s) = b + f_1 v + f_2 A v, and the derivatives of f
  OVER_FACTORIALS;
  const float q_1 = trace * s, q_2 = minus_det * s * s;
  float w_1 = 1.0f, w_2 = 0.0f, f_1 = 1.0f, f_2 = 0.5f;
#pragma unroll
  for (int k = 3; k <= LAST; ++k) {
    const float w = q_1 * w_1 + q_2 * w_2;
    w_2 = w_1;
    w_1 = w;
    f_1 += OVER[k - 1] * w_1;
    f_2 += OVER[k] * w_1;
  }
  f_1 = (f_1 - q_1 * f_2) * s;
  f_2 = f_2 * s * s;
  float g_1 = 1.0f + minus_det * f_2, g_2 = f_1 + trace * f_2;
  const float d_1 = minus_det * g_2, d_2 = g_1 + trace * g_2;
  const float shift = halley(h + (f_1 * h_1 + f_2 * h_2), g_1 * h_1 + g_2 * h_2, d_1 * h_1 + d_2 * h_2);
  if (leaving && fabsf(shift) * radius < NEAR && s + shift > 0.5f * s && s + shift <= limit) {
    s += shift;
    f_1 += shift * (g_1 + 0.5f * shift * d_1);
    f_2 += shift * (g_2 + 0.5f * shift * d_2);
    g_1 = 1.0f + minus_det * f_2;
    g_2 = f_1 + trace * f_2;
  }

  // where that leads, and whether all of the way lies inside
  t.by_p = f_1 * v_p + f_2 * w_p;
  t.by_q = f_1 * v_q + f_2 * w_q;
  const float a_0 = a + sp * t.by_p, b_0 = b + sq * t.by_q, c_0 = c - (sp * t.by_p + sq * t.by_q);
  const float last_a = g_1 * a_1 + g_2 * a_2, last_b = g_1 * b_1 + g_2 * b_2, last_c = -(last_a + last_b);
  const float turn = radius * s;
  const float out = fmaxf(fmaxf(beyond(a, a_0, a_1, a_2, last_a, s, turn), beyond(b, b_0, b_1, b_2, last_b, s, turn)),
                          beyond(c, c_0, c_1, c_2, last_c, s, turn));
  t.good = out <= SLACK;
  t.s = s;
  t.f_1 = f_1, t.f_2 = f_2, t.g_1 = g_1, t.g_2 = g_2;
  const float height = by_c ? c_0 : by_b ? b_0 : a_0, speed = by_c ? last_c : by_b ? last_b : last_a;
  t.crosses = height <= 0.0f && speed < 0.0f;
  return t;
}

// Take a step, or half of it next time, if it is not good.
DEVICE void go(Point& at, const Step& t) {
  at.reach = t.good ? 1.0f : 0.5f * t.s;
  if (!t.good) return;
  const bool there = t.s >= at.left.high;
  at.left.add(-t.s);
  at.left.high = there ? 0.0f : fmaxf(at.left.high, TINY);
  at.p.add(t.by_p);
  at.q.add(t.by_q);
  if (there || !t.crosses) return;
  if (t.by_c) {
    (t.sp == t.sq ? at.i : at.j) += t.sp > 0.0f ? 1 : -1;
    at.p.add(-t.sp);
    at.q.add(-t.sq);
  }
  at.sp = t.by_b ? t.sp : -t.sp;
  at.sq = t.by_b || t.by_c ? -t.sq : t.sq;
}

// The end of a point after unit time. The step where the last stretch starts, and its derivative, where asked for.
template <int N, int M, bool SLOPES, class Velocity>
DEVICE Many<float, 2> walk(float x, float y, Velocity velocity, int* since = nullptr, Slope* slope = nullptr) {
  Point at = begin<N, M>(x, y);
  for (int steps = 0; at.left.high > 0.0f && steps < MOST; ++steps) {
    const Step t = next<N, M>(at, velocity);
    if constexpr (SLOPES) {
      if (slope->squeezed()) {
        *since = steps;
        *slope = {};
      }
      if (t.good) {
        const Slope e = t.slope(), was = *slope;
        *slope = {e.pp * was.pp + e.pq * was.qp, e.pp * was.pq + e.pq * was.qq, e.qp * was.pp + e.qq * was.qp,
                  e.qp * was.pq + e.qq * was.qq};
      }
    }
    go(at, t);
  }
  const bool lost = at.left.high > 0.0f;
  x = (2 * at.i + 1 - N) + ((at.p.high + at.q.high) + (at.p.low + at.q.low));
  y = (2 * at.j + 1 - M) + ((at.p.high - at.q.high) + (at.p.low - at.q.low));
  return {{lost ? NAN : x / N, lost ? NAN : y / M}};
}

// What a step is worth to the velocities, given the adjoint at its end, by add(place, amount).
template <class Add>
DEVICE void credit(const Step& t, float mu_p, float mu_q, Add add) {
  // f depends on A by its trace and determinant: one more series
  OVER_FACTORIALS;
  const float q_1 = t.trace * t.s, q_2 = t.minus_det * t.s * t.s;
  float w_1 = 1.0f, w_2 = 0.0f, y_1 = 1.0f, y_2 = 0.0f, y_a = OVER[4], y_b = OVER[3];
#pragma unroll
  for (int k = 5; k <= LAST + 1; ++k) {
    const float w = q_1 * w_1 + q_2 * w_2;
    w_2 = w_1;
    w_1 = w;
    const float y = q_1 * y_1 + (q_2 * y_2 + w_1);
    y_2 = y_1;
    y_1 = y;
    y_b += OVER[k - 1] * y_1;
    y_a += OVER[k] * y_1;
  }
  y_b = y_b * t.s * t.s * t.s;
  y_a = y_a * t.s * t.s * t.s * t.s;
  const float to_1 = mu_p * t.v_p + mu_q * t.v_q, to_2 = mu_p * t.w_p + mu_q * t.w_q;
  const float to_trace = to_1 * t.minus_det * y_a + to_2 * y_b, to_det = to_1 * (y_b - t.trace * y_a) + to_2 * y_a;
  // to the velocity at the start, and to A
  const float v_to_p = t.f_1 * mu_p + t.f_2 * (t.m_pp * mu_p + t.m_qp * mu_q);
  const float v_to_q = t.f_1 * mu_q + t.f_2 * (t.m_pq * mu_p + t.m_qq * mu_q);
  const float to_pp = t.sp * (t.f_2 * mu_p * t.v_p + to_trace - to_det * t.m_qq);
  const float to_pq = t.sq * (t.f_2 * mu_p * t.v_q + to_det * t.m_qp);
  const float to_qp = t.sp * (t.f_2 * mu_q * t.v_p + to_det * t.m_pq);
  const float to_qq = t.sq * (t.f_2 * mu_q * t.v_q + to_trace - to_det * t.m_pp);
  add(t.at_a, t.a * v_to_p + to_pp);
  add(t.at_a + 1, t.a * v_to_q + to_qp);
  add(t.at_b, t.b * v_to_p + to_pq);
  add(t.at_b + 1, t.b * v_to_q + to_qq);
  add(t.at_c, t.c * v_to_p - to_pp - to_pq);
  add(t.at_c + 1, t.c * v_to_q - to_qp - to_qq);
}

// The gradient to the velocities by add(place, amount), given that to the end of a point.
//
// One walk finds the derivative of the end by the start, and with it the adjoint there; another carries this along. A
// way whose derivative squeezes is taken apart into stretches, the last of which is done first: see pstn/kernels/cpab.py.
template <int N, int M, class Velocity, class Add>
DEVICE void pull(float x, float y, float to_x, float to_y, Velocity velocity, Add add) {
  int first = 0, last = MOST;
  Slope slope;
  walk<N, M, true>(x, y, velocity, &first, &slope);
  // the end's x is (2 i + 1 + p + q) / N - 1, its y has p - q
  const float end_p = to_x / N + to_y / M, end_q = to_x / N - to_y / M;
  double to_p = slope.pp * end_p + slope.qp * end_q, to_q = slope.pq * end_p + slope.qq * end_q;
  while (last > 0) {  // from step `first` on, where (to_p, to_q) is the adjoint
    Point at = begin<N, M>(x, y);
    double here_p = to_p, here_q = to_q;
    int before = 0;
    slope = {};
    for (int steps = 0; at.left.high > 0.0f && steps < last; ++steps) {
      if (steps < first && slope.squeezed()) {
        before = steps;
        slope = {};
      }
      if (steps == first) {
        to_p = slope.pp * here_p + slope.qp * here_q;
        to_q = slope.pq * here_p + slope.qq * here_q;
      }
      const Step t = next<N, M>(at, velocity);
      if (t.good) {
        const Slope e = t.slope(), was = slope;
        if (steps < first) {
          slope = {e.pp * was.pp + e.pq * was.qp, e.pp * was.pq + e.pq * was.qq, e.qp * was.pp + e.qq * was.qp,
                   e.qp * was.pq + e.qq * was.qq};
        } else {  // the adjoint at the end of the step
          const double over_det = 1.0 / (e.pp * e.qq - e.pq * e.qp), p = here_p, q = here_q;
          here_p = (e.qq * p - e.qp * q) * over_det;
          here_q = (e.pp * q - e.pq * p) * over_det;
          const float mu_p = float(fmin(fmax(here_p, -LARGEST), LARGEST));
          const float mu_q = float(fmin(fmax(here_q, -LARGEST), LARGEST));
          credit(t, mu_p, mu_q, add);
        }
      }
      go(at, t);
    }
    last = first;
    first = before;
  }
}

}  // namespace cpab
