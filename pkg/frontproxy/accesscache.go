package frontproxy

import (
	"crypto/sha256"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/request/identity"
)

const (
	// maxVisitors is how many visitors are remembered since the last turn, and
	// visitorsTurn how long after the last turn the next one is at the latest. Who has
	// not come for two turns is forgotten.
	maxAccessEntries = 32 << 10
	visitorsTurn     = 5 * time.Minute
)

// visitor is a user in a logical cluster, or in what a view shows of one. Of the name there is a digest: issuers of
// tenants give users names of up to 64 KiB.
type accessKey struct {
	user    [sha256.Size]byte
	home    logicalcluster.Name
	cluster logicalcluster.Name
	view    string
}

func accessKeyOf(who user.Info, to logicalcluster.Name, view string) accessKey {
	return accessKey{user: sha256.Sum256([]byte(who.GetName())), home: identity.FlowOf("", who).Cluster, cluster: to, view: view}
}

// visitors remembers who has entered which logical cluster lately: from them its
// existence need not be concealed. It decides nothing else, so that it does no harm
// that rights may have gone since.
type accessCache struct {
	mu          sync.RWMutex
	now, before map[accessKey]struct{}
	turned      time.Time
}

func newAccessCache() *accessCache {
	return &accessCache{now: map[accessKey]struct{}{}, turned: time.Now()}
}

// has reports whether the visitor has entered lately.
func (v *accessCache) has(who accessKey) bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	_, now := v.now[who]
	_, before := v.before[who]
	return now || before
}

// entered notes that the visitor has entered.
func (v *accessCache) entered(who accessKey) {
	v.mu.RLock()
	_, known := v.now[who]
	fresh := time.Since(v.turned) < visitorsTurn
	v.mu.RUnlock()
	if known && fresh {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.now) >= maxAccessEntries || time.Since(v.turned) >= visitorsTurn {
		v.before, v.now, v.turned = v.now, map[accessKey]struct{}{}, time.Now()
	}
	v.now[who] = struct{}{}
}

// denied forgets the visitor, who may enter no longer.
func (v *accessCache) denied(who accessKey) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.now, who)
	delete(v.before, who)
}
