// SPDX-License-Identifier: BSD-3-Clause
// Broadcasts the text of rank 0, or its error.
#include "lockstep/comm/on_rank_0.h"

#include <exception>
#include <string_view>

#include "lockstep/comm/objects.h"
#include "lockstep/core/packed_error.h"
#include "lockstep/core/packing.h"

namespace lockstep {

std::string text_of_rank_0(ProcessGroup& group, const std::function<std::string()>& function) {
  std::string reply;
  if (group.rank() == 0) {
    try {
      reply = pack(true, function());
    } catch (const std::exception& error) {
      reply = pack(false, pack_error(error));
    }
  }
  reply = broadcast_object(std::string_view(reply), 0, group);
  bool returned = false;
  std::string content;
  unpack(reply, returned, content);
  if (!returned) std::rethrow_exception(unpack_error(content));
  return content;
}

}  // namespace lockstep
