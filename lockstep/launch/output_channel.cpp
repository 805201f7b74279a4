// SPDX-License-Identifier: BSD-3-Clause
// Opens pipes and raw pseudo-terminals.
#include "lockstep/launch/output_channel.h"

#include <cerrno>

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "lockstep/core/error.h"
#include "lockstep/core/system_error.h"

namespace lockstep {

OutputChannel open_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw BackendError(fmt::format("cannot make a pipe: {}", reason_of(errno)));
  }
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

std::optional<OutputChannel> open_terminal() {
  OutputChannel channel{UniqueFd(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK)), {}};
  if (!channel.reader || ::unlockpt(channel.reader.get()) != 0) return std::nullopt;
  // Opened through its master, not by name: a container may have no /dev/pts.
  channel.writer.reset(::ioctl(channel.reader.get(), TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC));
  termios settings{};
  if (!channel.writer || ::tcgetattr(channel.writer.get(), &settings) != 0) return std::nullopt;
  ::cfmakeraw(&settings);
  if (::tcsetattr(channel.writer.get(), TCSANOW, &settings) != 0) return std::nullopt;
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0) {
    ::ioctl(channel.writer.get(), TIOCSWINSZ, &size);
  }
  return channel;
}

}  // namespace lockstep
