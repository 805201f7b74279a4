// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/collective/ordinary_tensor.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "lockstep/core/error.h"

namespace lockstep {

at::Tensor ordinary_tensor(at::IntArrayRef sizes, const at::TensorOptions& options) try {
  return at::empty(sizes, options);
} catch (const c10::Error& error) {
  const double bytes = static_cast<double>(c10::multiply_integers(sizes)) *
                       static_cast<double>(options.dtype().itemsize());
  throw BackendError(fmt::format(
      "cannot make a tensor of {:.1f} MiB ({}); use a smaller model, or raise the memory limit",
      bytes / (1 << 20), first_line(error)));
}

}  // namespace lockstep
