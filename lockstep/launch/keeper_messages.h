// SPDX-License-Identifier: BSD-3-Clause
// What a launcher and its ranks' keeper tell each other, over a pair of sockets that keep the
// bounds of messages.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <variant>

#include "lockstep/launch/rank_process.h"

namespace lockstep {

// No rank is started any more; why.
struct StartFailed {
  std::string what;
};

using KeeperMessage = std::variant<StartedRank, RankChange, StartFailed>;

// To the launcher. Waits while the socket is full; what a launcher that is gone cannot take is
// dropped. The descriptors of a started rank stay open here.
void send_to_launcher(int socket, const KeeperMessage& message);
// Nothing if there is none at the moment. ConnectionClosed if the keeper is gone.
std::optional<KeeperMessage> receive_from_keeper(int socket);

// To the keeper: to end what is left, with this grace, and itself. A keeper that is gone gets none.
void send_away(int socket, std::chrono::milliseconds grace);
// What the launcher sent; nothing if it is gone. Only when the socket is readable.
std::optional<std::chrono::milliseconds> receive_from_launcher(int socket);

}  // namespace lockstep
