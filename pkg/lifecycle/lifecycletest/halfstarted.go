// Package lifecycletest holds that servers which cannot start leave nothing behind.
package lifecycletest

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Server is one that is ready to run.
type Server interface{ Close() }

// Mistake is something that is wrong with the options of a server.
type Mistake[O any] struct {
	// Make makes it. garbage is a file that holds nothing of use.
	Make func(o *O, garbage string)
	// Want is in the error: the flag.
	Want string
}

// HalfStarted starts servers that have one of the mistakes each, and then one that has none, on
// the same port and whatever else options give to all of them. Each says what is wrong, and has
// given back what it had opened: the next one has it.
func HalfStarted[O any](t *testing.T, options func(port int) *O, start func(o *O) (Server, error), mistakes map[string]Mistake[O]) {
	t.Helper()
	taken, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address, ok := taken.Addr().(*net.TCPAddr)
	require.True(t, ok)
	_, err = start(options(address.Port))
	require.ErrorContains(t, err, "--secure-port", "the port is in use")
	require.NoError(t, taken.Close())

	garbage := filepath.Join(t.TempDir(), "garbage")
	require.NoError(t, os.WriteFile(garbage, []byte("garbage"), 0o600))
	for name, mistake := range mistakes {
		t.Run(name, func(t *testing.T) {
			o := options(address.Port)
			mistake.Make(o, garbage)
			_, err := start(o)
			require.ErrorContains(t, err, mistake.Want)
		})
	}
	s, err := start(options(address.Port))
	require.NoError(t, err)
	_, err = start(options(address.Port))
	require.ErrorContains(t, err, "--secure-port", "the server listens there")
	s.Close()
	s.Close()
}
