package exitcode

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/dev/supervise"
	"github.com/shardplane/shardplane/pkg/etcd"
)

func TestOf(t *testing.T) {
	require.Zero(t, Of(nil))
	require.Equal(t, Failure, Of(errors.New("any")))
	require.Equal(t, supervise.ExitData, Of(fmt.Errorf("start: %w", etcd.ErrDataDirFormat)))
	require.Equal(t, supervise.ExitData, Of(fmt.Errorf("start: %w", etcd.ErrDataDirCorrupt)))
	require.Equal(t, supervise.ExitData, Of(fmt.Errorf("start: %w", etcd.ErrIdentity)))
	require.Equal(t, Failure, Of(etcd.ErrDataDirInUse), "a retry may succeed when the other process has stopped")
}
