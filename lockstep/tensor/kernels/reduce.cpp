// SPDX-License-Identifier: BSD-3-Clause
// Reduction loops, compiled for several instruction sets and chosen at run time.
#include "lockstep/tensor/kernels/reduce.h"

#include <algorithm>
#include <array>
#include <concepts>
#include <type_traits>

#include "lockstep/core/error.h"
#include "lockstep/core/process/instruction_set.h"
#include "lockstep/tensor/kernels/half_types.h"

namespace lockstep {
namespace {

struct Job {
  std::span<const void* const> sources;
  std::span<void* const> destinations;
  std::int64_t count;
  double scale;
};

// Integers wrap around, as in PyTorch. Overflow is defined for unsigned types only, and types
// narrower than int would be promoted to int.
template <class T>
struct Wrapping {
  using Type = T;
};
template <std::integral T>
struct Wrapping<T> {
  using Type = std::common_type_t<std::make_unsigned_t<T>, unsigned>;
};

struct Sum {
  template <class T>
  static T apply(T a, T b) {
    using Wide = typename Wrapping<T>::Type;
    return static_cast<T>(static_cast<Wide>(a) + static_cast<Wide>(b));
  }
};
struct Product {
  template <class T>
  static T apply(T a, T b) {
    using Wide = typename Wrapping<T>::Type;
    return static_cast<T>(static_cast<Wide>(a) * static_cast<Wide>(b));
  }
};
struct Min {
  template <class T>
  static T apply(T a, T b) {
    return b < a || b != b ? b : a;
  }
};
struct Max {
  template <class T>
  static T apply(T a, T b) {
    return b > a || b != b ? b : a;
  }
};

// Half types are accumulated in float, the others in themselves.
template <class T>
constexpr bool kIsHalf = std::is_same_v<T, HalfBits> || std::is_same_v<T, BFloat16Bits>;
template <class T>
using AccumulatorOf = std::conditional_t<kIsHalf<T>, float, T>;

template <class T>
[[gnu::always_inline]] inline AccumulatorOf<T> widened(T element) {
  if constexpr (kIsHalf<T>) {
    return widen(element);
  } else {
    return element;
  }
}

template <class T>
[[gnu::always_inline]] inline T scaled(AccumulatorOf<T> value, AccumulatorOf<T> scale) {
  const auto product = static_cast<AccumulatorOf<T>>(value * scale);
  if constexpr (kIsHalf<T>) {
    return narrow<T>(product);
  } else {
    return product;
  }
}

// Plain loops for the compiler to vectorize, inlined into one function for each instruction set.
// Stores are the bottleneck: a core loads two vectors in the time in which it stores one.

template <class T, std::size_t Count>
std::array<const T*, Count> at_element(const void* const* sources, std::int64_t begin) {
  std::array<const T*, Count> elements;
  for (std::size_t k = 0; k < Count; ++k) elements[k] = static_cast<const T*>(sources[k]) + begin;
  return elements;
}

template <class Accumulator, class Op, class T, std::size_t Count>
[[gnu::always_inline]] inline Accumulator combine(Accumulator value,
                                                  const std::array<const T*, Count>& sources,
                                                  std::int64_t i) {
  for (const T* source : sources) value = Op::apply(value, widened(source[i]));
  return value;
}

// For two ranks or replicas: elements pass through registers only.
template <class T, class Accumulator, class Op, std::size_t Destinations>
[[gnu::always_inline]] inline void reduce_two(const Job& job) {
  const auto scale = static_cast<Accumulator>(job.scale);
  const T* first = static_cast<const T*>(job.sources[0]);
  const T* second = static_cast<const T*>(job.sources[1]);
  std::array<T*, Destinations> targets;
  for (std::size_t k = 0; k < Destinations; ++k) targets[k] = static_cast<T*>(job.destinations[k]);
  LOCKSTEP_INDEPENDENT_ELEMENTS
  for (std::int64_t i = 0; i < job.count; ++i) {
    const T result = scaled<T>(Op::apply(widened(first[i]), widened(second[i])), scale);
    for (T* target : targets) target[i] = result;
  }
}

// Stays in the first-level cache while sources are added to it, a few at a time.
template <class T, class Accumulator, class Op>
class Tile {
 public:
  static constexpr std::int64_t kElements = 512;
  static constexpr std::size_t kSourcesAtOnce = 4;

  [[gnu::always_inline]] Tile(std::int64_t begin, std::int64_t length)
      : begin_(begin), length_(length) {}

  [[gnu::always_inline]] void load(std::span<const void* const> sources) {
    for (bool empty = true; !sources.empty(); empty = false) {
      const std::size_t count = std::min(kSourcesAtOnce, sources.size());
      if (count == 1) take<1>(sources, empty);
      if (count == 2) take<2>(sources, empty);
      if (count == 3) take<3>(sources, empty);
      if (count == kSourcesAtOnce) take<kSourcesAtOnce>(sources, empty);
      sources = sources.subspan(count);
    }
  }

  [[gnu::always_inline]] void store(void* destination, Accumulator scale) const {
    T* target = static_cast<T*>(destination) + begin_;
    for (std::int64_t i = 0; i < length_; ++i) {
      target[i] = scaled<T>(elements_[i], scale);
    }
  }

 private:
  template <std::size_t Count>
  [[gnu::always_inline]] void take(std::span<const void* const> sources, bool empty) {
    if (empty) {
      const T* first = static_cast<const T*>(sources.front()) + begin_;
      const auto others = at_element<T, Count - 1>(sources.data() + 1, begin_);
      LOCKSTEP_INDEPENDENT_ELEMENTS
      for (std::int64_t i = 0; i < length_; ++i) {
        elements_[i] = combine<Accumulator, Op>(widened(first[i]), others, i);
      }
    } else {
      const auto all = at_element<T, Count>(sources.data(), begin_);
      LOCKSTEP_INDEPENDENT_ELEMENTS
      for (std::int64_t i = 0; i < length_; ++i) {
        elements_[i] = combine<Accumulator, Op>(elements_[i], all, i);
      }
    }
  }

  alignas(64) std::array<Accumulator, kElements> elements_;
  std::int64_t begin_;
  std::int64_t length_;
};

template <class T, class Accumulator, class Op>
[[gnu::always_inline]] inline void reduce_tiles(const Job& job) {
  using OneTile = Tile<T, Accumulator, Op>;
  for (std::int64_t begin = 0; begin < job.count; begin += OneTile::kElements) {
    OneTile tile(begin, std::min(OneTile::kElements, job.count - begin));
    tile.load(job.sources);
    for (void* destination : job.destinations) {
      tile.store(destination, static_cast<Accumulator>(job.scale));
    }
  }
}

template <class T, class Accumulator, class Op>
[[gnu::always_inline]] inline void reduce_all(const Job& job) {
  if (job.sources.size() == 2 && job.destinations.size() == 2) {
    reduce_two<T, Accumulator, Op, 2>(job);
  } else if (job.sources.size() == 2 && job.destinations.size() == 1) {
    reduce_two<T, Accumulator, Op, 1>(job);
  } else {
    reduce_tiles<T, Accumulator, Op>(job);
  }
}

// A destination may be a source, but only with the same elements in the same places.
template <class T, class Accumulator, class Op>
struct Reduction {
  [[gnu::always_inline]] void operator()() const { reduce_all<T, Accumulator, Op>(job); }

  const Job& job;
};

template <class T, class Accumulator, class Op>
void reduce_best(const Job& job) {
  run_vectorized(Reduction<T, Accumulator, Op>{job});
}

template <class T>
void reduce_typed(const Job& job, ReduceOp op) {
  using Accumulator = AccumulatorOf<T>;
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::mean:
      return reduce_best<T, Accumulator, Sum>(job);
    case ReduceOp::min:
      return reduce_best<T, Accumulator, Min>(job);
    case ReduceOp::max:
      return reduce_best<T, Accumulator, Max>(job);
    case ReduceOp::product:
      return reduce_best<T, Accumulator, Product>(job);
  }
}

// Bools are bytes of 0 and 1: "or" is their max, "and" their min.
ReduceOp operation_on_bools(ReduceOp op) {
  if (op == ReduceOp::sum) return ReduceOp::max;
  if (op == ReduceOp::product) return ReduceOp::min;
  return op;
}

}  // namespace

bool can_reduce(at::ScalarType type, ReduceOp op) {
  switch (type) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
    case at::kChar:
    case at::kShort:
    case at::kInt:
    case at::kLong:
    case at::kByte:
    case at::kBool:
      return true;
    case at::kComplexFloat:
    case at::kComplexDouble:
      return op == ReduceOp::sum || op == ReduceOp::mean;
    default:
      return false;
  }
}

void reduce(std::span<const void* const> sources, std::span<void* const> destinations,
            std::int64_t count, at::ScalarType type, ReduceOp op, double scale) {
  if (!can_reduce(type, op)) throw UsageError("reduce: this type of element cannot be reduced so");
  // A complex element is two adjacent real ones.
  const int reals = c10::isComplexType(type) ? 2 : 1;
  const Job job{sources, destinations, reals * count, scale};
  switch (c10::toRealValueType(type)) {
    case at::kFloat:
      return reduce_typed<float>(job, op);
    case at::kDouble:
      return reduce_typed<double>(job, op);
    case at::kHalf:
      return reduce_typed<HalfBits>(job, op);
    case at::kBFloat16:
      return reduce_typed<BFloat16Bits>(job, op);
    case at::kChar:
      return reduce_typed<std::int8_t>(job, op);
    case at::kShort:
      return reduce_typed<std::int16_t>(job, op);
    case at::kInt:
      return reduce_typed<std::int32_t>(job, op);
    case at::kLong:
      return reduce_typed<std::int64_t>(job, op);
    case at::kByte:
      return reduce_typed<std::uint8_t>(job, op);
    case at::kBool:
      return reduce_typed<std::uint8_t>(job, operation_on_bools(op));
    default:
      return;
  }
}

}  // namespace lockstep
