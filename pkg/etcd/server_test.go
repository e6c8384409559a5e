package etcd

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStartStop(t *testing.T) {
	s, err := Start(t.Context(), Config{DataDir: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(s.Stop)
	_, err = s.Client().Put(t.Context(), "a", "1")
	require.NoError(t, err)
	w := s.Client().Watch(t.Context(), "a", clientv3.WithRev(1), clientv3.WithProgressNotify())
	require.NoError(t, s.Client().RequestProgress(t.Context()))
	r := <-w
	require.Len(t, r.Events, 1)
}
