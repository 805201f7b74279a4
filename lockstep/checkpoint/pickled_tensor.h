// SPDX-License-Identifier: BSD-3-Clause
// The names that a pickle may refer to, and the tensors that they stand for.
#pragma once

#include <stdexcept>

#include "lockstep/checkpoint/pickle_machine.h"

namespace lockstep::pickle {

// The arguments of a known name do not describe a tensor.
class MalformedCall : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

bool is_known(const Global& name);
bool is_storage(const Global& name);

// What a call of torch._utils._rebuild_tensor_v2, _rebuild_tensor_v3 or _rebuild_parameter returns
// in Python. MalformedCall if the arguments are of the wrong kind, if the tensor does not lie
// within its storage, or if the name is another.
at::Tensor tensor_of_call(const Global& name, const Tuple& arguments,
                          const StorageReader& storages);

}  // namespace lockstep::pickle
