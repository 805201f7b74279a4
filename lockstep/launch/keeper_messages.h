// SPDX-License-Identifier: BSD-3-Clause
// The messages between a launcher and its ranks' keeper, over a socket pair that preserves message
// boundaries.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <variant>

#include "lockstep/launch/rank_process.h"

namespace lockstep {

// No further rank will be started, and why.
struct StartFailed {
  std::string what;
};

using KeeperMessage = std::variant<StartedRank, RankChange, StartFailed>;

// Sends to the launcher. Blocks while the socket is full; drops the message if the launcher is
// gone. The caller keeps the descriptors of a started rank.
void send_to_launcher(int socket, const KeeperMessage& message);
// The next message; nullopt if there is none yet. ConnectionClosed if the keeper is gone.
std::optional<KeeperMessage> receive_from_keeper(int socket);

// Tells the keeper to end all remaining processes, with this grace, and then itself. Does nothing
// if the keeper is gone.
void send_to_keeper(int socket, std::chrono::milliseconds grace);
// The grace that the launcher sent; nullopt if the launcher is gone. Call it only when the socket
// is readable.
std::optional<std::chrono::milliseconds> receive_from_launcher(int socket);

}  // namespace lockstep
