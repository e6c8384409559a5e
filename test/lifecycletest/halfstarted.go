// Package lifecycletest tests that servers which fail to start release all resources.
package lifecycletest

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Server is a server that is ready to run.
type Server interface{ Close() }

// Mistake is an invalid option of a server.
type Mistake[O any] struct {
	// Make sets the option. garbage is a file with invalid content.
	Make func(o *O, garbage string)
	// Want is part of the error, e.g. the flag.
	Want string
}

// HalfStarted starts servers with one mistake each, and then one without mistakes, on the same port and with the same
// other options. Each must return an error and release everything that it has opened, so that the next can open it.
// The test must not run in parallel, because others could use the port in between.
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
