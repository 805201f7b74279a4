// SPDX-License-Identifier: BSD-3-Clause
// How messages say, after a peer's name, that it has gone.
#pragma once

#include <string>

namespace lockstep::peer_end {

inline constexpr const char* died =
    " died before it made or finished this call; its own output and the launcher's tell how";

// No more is known of a rank on another machine.
inline constexpr const char* connection_lost =
    ": its connection was lost before it made or finished this call: it died, or the network did; "
    "its own output and the launcher's tell which";

// The program may have ended because of an error that it caught itself.
inline constexpr const char* left =
    " left the group before it made this call: its program ended, as its own output may tell, or "
    "makes fewer calls than this rank";

// With the reason that it gave for leaving amid an exception.
inline std::string failed(const std::string& reason) {
  return " failed before it made or finished this call: " + reason;
}

}  // namespace lockstep::peer_end
