package apibinding

import (
	"hash/fnv"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
)

// turns has the bindings of a logical cluster write into its LogicalCluster one after the
// other: a new one has several at a time, of which all but the first would be refused and
// start anew. Some logical clusters share a turn, which is short. The zero value is ready to
// use.
type turns [64]sync.Mutex

// lock waits for the turn of a logical cluster, which ends when done is called.
func (t *turns) lock(cluster logicalcluster.Name) (done func()) {
	h := fnv.New32a()
	_, _ = h.Write([]byte(cluster))
	turn := &t[h.Sum32()%uint32(len(t))]
	turn.Lock()
	return turn.Unlock
}
