// SPDX-License-Identifier: BSD-3-Clause
// A plain loop, which the compiler vectorizes for several instruction sets.
#include "lockstep/optim/kernels/sgd_kernel.h"

#include "lockstep/core/process/instruction_set.h"
#include "lockstep/optim/kernels/element_types.h"

namespace lockstep::optim {
namespace {

enum class Momentum { none, classical, nesterov };

template <class Parameter, bool kL2, Momentum kMomentum>
struct SgdLoop {
  using Real = State<Parameter>;

  [[gnu::always_inline]] void operator()() const {
    auto* const parameter = static_cast<Parameter*>(memory.parameter);
    const auto* const gradient = static_cast<const Parameter*>(memory.gradient);
    auto* const momentum_buffer = static_cast<Real*>(memory.momentum_buffer);
    const auto gradient_factor = static_cast<Real>(constants.gradient_factor);
    const auto lr = static_cast<Real>(constants.lr);
    const auto l2 = static_cast<Real>(constants.l2);
    const auto momentum = static_cast<Real>(constants.momentum);
    const auto gradient_share = static_cast<Real>(constants.gradient_share);
    const auto hold = [&](std::int64_t first, std::int64_t count) __attribute__((always_inline)) {
      log->hold(first, count, parameter, momentum_buffer);
    };
    const auto update = [&](std::int64_t from, std::int64_t to) __attribute__((always_inline)) {
      LOCKSTEP_INDEPENDENT_ELEMENTS
      for (std::int64_t i = from; i < to; ++i) {
        const auto value = static_cast<Real>(parameter[i]);
        auto slope = static_cast<Real>(gradient[i - begin]) * gradient_factor;
        if constexpr (kL2) slope += l2 * value;
        if constexpr (kMomentum != Momentum::none) {
          const Real velocity = momentum_buffer[i] * momentum + slope * gradient_share;
          momentum_buffer[i] = velocity;
          slope = kMomentum == Momentum::nesterov ? slope + momentum * velocity : velocity;
        }
        parameter[i] = static_cast<Parameter>(value - lr * slope);
      }
    };
    update_logged(log, begin, end, hold, update);
  }

  const SgdMemory& memory;
  std::int64_t begin;
  std::int64_t end;
  const SgdConstants& constants;
  const UndoLog* log;
};

template <class Parameter, bool kL2>
void run(const SgdMemory& memory, std::int64_t begin, std::int64_t end,
         const SgdConstants& constants, const UndoLog* log) {
  if (memory.momentum_buffer == nullptr) {
    run_vectorized(SgdLoop<Parameter, kL2, Momentum::none>{memory, begin, end, constants, log});
  } else if (constants.nesterov) {
    run_vectorized(SgdLoop<Parameter, kL2, Momentum::nesterov>{memory, begin, end, constants, log});
  } else {
    run_vectorized(
        SgdLoop<Parameter, kL2, Momentum::classical>{memory, begin, end, constants, log});
  }
}

}  // namespace

void update_sgd(const SgdMemory& memory, std::int64_t begin, std::int64_t end, at::ScalarType type,
                const SgdConstants& constants, const UndoLog* log) {
  with_element_of(type, [&]<class Parameter>(Parameter) {
    if (constants.l2 != 0) return run<Parameter, true>(memory, begin, end, constants, log);
    run<Parameter, false>(memory, begin, end, constants, log);
  });
}

}  // namespace lockstep::optim
