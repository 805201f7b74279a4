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

// A rank cannot be started, and why; of the first ranks, none that follow it either.
struct StartFailed {
  int rank = 0;
  std::string what;
};

using KeeperMessage = std::variant<StartedRank, RankChange, StartFailed>;

// Sends to the launcher. Blocks while the socket is full; drops the message if the launcher is
// gone. The caller keeps the descriptors of a started rank.
void send_to_launcher(int socket, const KeeperMessage& message);
// The next message; nullopt if there is none yet. ConnectionClosed if the keeper is gone.
std::optional<KeeperMessage> receive_from_keeper(int socket);

// The keeper ends all remaining processes, with this grace, and then itself.
struct EndRanks {
  std::chrono::milliseconds grace;
};

using LauncherMessage = std::variant<PlacedRank, EndRanks>;

// Does nothing if the keeper is gone.
void send_to_keeper(int socket, const LauncherMessage& message);
// The next message; nullopt if the launcher is gone. Call it only when the socket is readable.
std::optional<LauncherMessage> receive_from_launcher(int socket);

}  // namespace lockstep
