package frontproxy

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/kcp-dev/sdk/apis/core"
	"golang.org/x/sync/singleflight"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/client"
)

const (
	// readersFor is how long it is remembered what root says of a user, and maxReaders
	// of how many.
	readersFor = 10 * time.Second
	maxReaders = 10_000
	// readersTimeout bounds how long root is asked.
	readersTimeout = 5 * time.Second
)

// metricsReaders knows who may read the metrics of this process: who may get /metrics in
// root, whose shard is asked.
type metricsReaders struct {
	root   *client.Factory
	groups authn.GroupFilter

	known  *cache.LRUExpireCache
	asking singleflight.Group
}

func newMetricsReaders(root *client.Factory, groups authn.GroupFilter) *metricsReaders {
	return &metricsReaders{root: root, groups: groups, known: cache.NewLRUExpireCache(maxReaders)}
}

// may reports whether a user may read metrics. Its error says that this could not be
// found out.
func (m *metricsReaders) may(ctx context.Context, who user.Info) (bool, error) {
	review := authz.ReviewOf(&user.DefaultInfo{Name: who.GetName(), UID: who.GetUID(), Groups: m.groups.Filter(who.GetGroups()), Extra: who.GetExtra()})
	review.Spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Verb: "get", Path: "/metrics"}
	text, err := json.Marshal(review.Spec)
	if err != nil {
		return false, fmt.Errorf("encoding the question whether user %q may read metrics: %w", who.GetName(), err)
	}
	key := string(text)
	if may, ok := m.known.Get(key); ok {
		return may.(bool), nil
	}
	done := m.asking.DoChan(key, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readersTimeout) // others may wait for it
		defer cancel()
		may, err := authz.AskDeeply(ctx, m.root.Cluster(core.RootCluster.Path()), review)
		if err == nil {
			m.known.Add(key, may, readersFor)
		}
		return may, err
	})
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case result := <-done:
		may, _ := result.Val.(bool)
		return may, result.Err
	}
}
