package replication

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/bubble"
)

// TestAudits holds that all replicas are read every ten minutes where digests cannot be compared, and
// otherwise once an hour, each a bit more or less often.
func TestAudits(t *testing.T) {
	for _, c := range []struct {
		trouble     trouble
		least, most int
	}{
		{trouble{name: "digests"}, 1, 1},
		{trouble{name: "no digests", silent: true}, 6, 8},
	} {
		t.Run(c.trouble.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				m := newModel(t, 1, c.trouble)
				m.config.AuditInterval = 0 // the default
				lists := func() int {
					m.cache.mu.Lock()
					defer m.cache.mu.Unlock()
					return m.cache.lists
				}
				m.edit(m.shard)
				m.start()
				<-time.After(time.Minute)
				before := lists()
				<-time.After(70 * time.Minute)
				audits := lists() - before
				require.GreaterOrEqual(t, audits, c.least)
				require.LessOrEqual(t, audits, c.most)
				m.stop()
				m.shard.stray.Wait()
				m.cache.stray.Wait()
			})
		})
	}
}
