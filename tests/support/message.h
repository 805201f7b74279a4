// SPDX-License-Identifier: BSD-3-Clause
// What rank processes and the test that started them say to each other over a socket.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::testing {

enum class MessageType : unsigned char { failure, cue, result, error, ended };

struct Message {
  MessageType type = MessageType::ended;
  // The rank that a cue is from, the line of a failure, the rank that PeerLost names.
  int number = 0;
  std::string name;
  std::string text;
};

// Blocks until all of it is written. False if the other end is gone.
bool send_message(int socket, const Message& message);

// Takes bytes apart into messages.
class MessageReader {
 public:
  // Reads what there is, once; blocks only if the socket does. False at the end of the stream.
  bool read_some(int socket);
  // The next complete message.
  std::optional<Message> next();

 private:
  std::string buffer_;
};

}  // namespace lockstep::testing
