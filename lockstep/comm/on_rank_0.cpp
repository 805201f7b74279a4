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
  std::exception_ptr own_error;
  if (group.rank() == 0) {
    try {
      reply = pack(true, function());
    } catch (const std::exception& error) {
      own_error = std::current_exception();
      reply = pack(false, pack_error(error));
    }
  }
  try {
    reply = broadcast_object(std::string_view(reply), 0, group);
  } catch (...) {
    // The group may be unusable because of it.
    if (own_error) std::rethrow_exception(own_error);
    throw;
  }
  bool returned = false;
  std::string content;
  unpack(reply, returned, content);
  if (!returned) std::rethrow_exception(unpack_error(content));
  return content;
}

}  // namespace lockstep
