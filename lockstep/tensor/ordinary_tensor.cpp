// SPDX-License-Identifier: BSD-3-Clause
// Allocates tensors after a check that there is memory for all ranks of this machine.
#include "lockstep/tensor/ordinary_tensor.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/core/process/memory.h"

namespace lockstep {
namespace {

constexpr double kMebibyte = 1024 * 1024;

}  // namespace

at::Tensor ordinary_tensor(at::IntArrayRef sizes, const at::TensorOptions& options, int ranks) {
  const double bytes = static_cast<double>(c10::multiply_integers(sizes)) *
                       static_cast<double>(options.dtype().itemsize());
  // The kernel may promise memory that it does not have, and then kills the process that writes to
  // it.
  const auto available = static_cast<double>(available_memory(ranks));
  if (options.device().is_cpu() && bytes > available) {
    throw BackendError(fmt::format(
        "{} rank{} of this machine need{} a tensor of {:.1f} MiB each, and {:.1f} MiB of memory "
        "are available to each; use fewer ranks, a smaller model, or raise the memory limit",
        ranks, ranks == 1 ? "" : "s", ranks == 1 ? "s" : "", bytes / kMebibyte,
        available / kMebibyte));
  }
  try {
    return at::empty(sizes, options);
  } catch (const c10::Error& error) {
    throw BackendError(fmt::format(
        "cannot make a tensor of {:.1f} MiB ({}); use a smaller model, or raise the memory limit",
        bytes / kMebibyte, first_line(error)));
  }
}

}  // namespace lockstep
