package footprint

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReadOnlyMappings(t *testing.T) {
	found, err := readOnlyMappings(strings.NewReader(`00400000-02466000 r-xp 00000000 fe:00 1234                       /usr/bin/shardplane
02466000-04a48000 r--p 02066000 fe:00 1234                       /usr/bin/shardplane
04a48000-04bba000 rw-p 04648000 fe:00 1234                       /usr/bin/shardplane
04bba000-06c10000 rw-p 00000000 00:00 0
c000000000-c004000000 rw-p 00000000 00:00 0                      [anon: Go: heap]
7f0000000000-7f0000001000 r--p 00000000 fe:00 99                 /usr/bin/shardplane-other
7ffc00000000-7ffc00002000 r-xp 00000000 00:00 0                  [vdso]
`), "/usr/bin/shardplane")
	require.NoError(t, err)
	require.Equal(t, []mapping{{0x400000, 0x2466000}, {0x2466000, 0x4a48000}}, found)

	_, err = readOnlyMappings(strings.NewReader("nonsense\n"), "/usr/bin/shardplane")
	require.ErrorContains(t, err, `unexpected mapping "nonsense"`)
}

func TestRelease(t *testing.T) {
	maps, err := os.Open("/proc/self/maps")
	require.NoError(t, err)
	defer func() { require.NoError(t, maps.Close()) }()
	program, err := os.Executable()
	require.NoError(t, err)
	found, err := readOnlyMappings(maps, program)
	require.NoError(t, err)
	require.NotEmpty(t, found)
	require.NoError(t, Release(), "and this process must still run")
}
