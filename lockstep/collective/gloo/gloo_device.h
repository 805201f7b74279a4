// SPDX-License-Identifier: BSD-3-Clause
// Gloo's end of this process's connections.
#pragma once

#include <memory>
#include <string>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace lockstep {

// On the interface that GLOO_SOCKET_IFNAME names, else on that of `own_host`. It has a thread that
// reads and writes, which lets other threads finish what they do on its core.
std::shared_ptr<gloo::transport::Device> make_gloo_device(const std::string& own_host);

}  // namespace lockstep
