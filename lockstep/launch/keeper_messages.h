// SPDX-License-Identifier: BSD-3-Clause
// What a launcher and its ranks' keeper tell each other, over a pair of sockets that preserve
// message boundaries.
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
// The next message; nothing if there is none at the moment. ConnectionClosed if the keeper is gone.
std::optional<KeeperMessage> receive_from_keeper(int socket);

// Tells the keeper to end all remaining processes, with this grace, and then itself. Does nothing
// if the keeper is gone.
void send_to_keeper(int socket, std::chrono::milliseconds grace);
// The grace that the launcher sent; nothing if the launcher is gone. Call it only when the socket
// is readable.
std::optional<std::chrono::milliseconds> receive_from_launcher(int socket);

}  // namespace lockstep
