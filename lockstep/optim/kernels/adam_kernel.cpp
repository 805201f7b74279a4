// SPDX-License-Identifier: BSD-3-Clause
// A plain loop, which the compiler vectorizes for several instruction sets.
#include "lockstep/optim/kernels/adam_kernel.h"

#include <cmath>

#include "lockstep/core/process/instruction_set.h"
#include "lockstep/optim/kernels/element_types.h"

namespace lockstep::optim {
namespace {

template <class Parameter, bool kL2, bool kAmsgrad>
struct AdamLoop {
  using Real = State<Parameter>;

  [[gnu::always_inline]] void operator()() const {
    auto* const parameter = static_cast<Parameter*>(memory.parameter);
    const auto* const gradient = static_cast<const Parameter*>(memory.gradient);
    auto* const exp_avg = static_cast<Real*>(memory.exp_avg);
    auto* const exp_avg_sq = static_cast<Real*>(memory.exp_avg_sq);
    auto* const max_exp_avg_sq = static_cast<Real*>(memory.max_exp_avg_sq);
    const auto gradient_factor = static_cast<Real>(constants.gradient_factor);
    const auto beta1 = static_cast<Real>(constants.beta1);
    const auto beta2 = static_cast<Real>(constants.beta2);
    const auto share1 = static_cast<Real>(1 - constants.beta1);
    const auto share2 = static_cast<Real>(1 - constants.beta2);
    const auto eps = static_cast<Real>(constants.eps);
    const auto l2 = static_cast<Real>(constants.l2);
    const auto keep = static_cast<Real>(constants.keep);
    const auto step_size = static_cast<Real>(constants.step_size);
    const auto root_scale = static_cast<Real>(constants.root_scale);
    const auto hold = [&](std::int64_t first, std::int64_t count) __attribute__((always_inline)) {
      log->hold(first, count, parameter, exp_avg, exp_avg_sq, kAmsgrad ? max_exp_avg_sq : nullptr);
    };
    const auto update = [&](std::int64_t from, std::int64_t to) __attribute__((always_inline)) {
      LOCKSTEP_INDEPENDENT_ELEMENTS
      for (std::int64_t i = from; i < to; ++i) {
        const auto value = static_cast<Real>(parameter[i]);
        auto slope = static_cast<Real>(gradient[i - begin]) * gradient_factor;
        if constexpr (kL2) slope += l2 * value;
        const Real first = exp_avg[i] * beta1 + slope * share1;
        Real second = exp_avg_sq[i] * beta2 + slope * share2 * slope;
        exp_avg[i] = first;
        exp_avg_sq[i] = second;
        if constexpr (kAmsgrad) {
          const Real most = max_exp_avg_sq[i];
          second = second > most || second != second ? second : most;  // NaN wins, as in PyTorch
          max_exp_avg_sq[i] = second;
        }
        const Real denominator = std::sqrt(second) * root_scale + eps;
        parameter[i] = static_cast<Parameter>(value * keep - step_size * first / denominator);
      }
    };
    update_logged(log, begin, end, hold, update);
  }

  const AdamMemory& memory;
  std::int64_t begin;
  std::int64_t end;
  const AdamConstants& constants;
  const UndoLog* log;
};

template <class Parameter, bool kL2>
void run(const AdamMemory& memory, std::int64_t begin, std::int64_t end,
         const AdamConstants& constants, const UndoLog* log) {
  if (memory.max_exp_avg_sq == nullptr) {
    run_vectorized(AdamLoop<Parameter, kL2, false>{memory, begin, end, constants, log});
  } else {
    run_vectorized(AdamLoop<Parameter, kL2, true>{memory, begin, end, constants, log});
  }
}

}  // namespace

void update_adam(const AdamMemory& memory, std::int64_t begin, std::int64_t end,
                 at::ScalarType type, const AdamConstants& constants, const UndoLog* log) {
  with_element_of(type, [&]<class Parameter>(Parameter) {
    if (constants.l2 != 0) return run<Parameter, true>(memory, begin, end, constants, log);
    run<Parameter, false>(memory, begin, end, constants, log);
  });
}

}  // namespace lockstep::optim
