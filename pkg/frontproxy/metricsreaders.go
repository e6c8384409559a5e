package frontproxy

import (
	"context"
	"time"

	"github.com/kcp-dev/sdk/apis/core"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/client"
)

const (
	// readersFor is how long it is remembered what root says of a user.
	readersFor = 10 * time.Second
	// readersTimeout bounds how long root is asked.
	readersTimeout = 5 * time.Second
)

// metricsReaders knows who may read the metrics of this process: who may get /metrics in
// root, whose shard is asked.
type metricsReaders struct {
	root    *client.Factory
	groups  authn.GroupFilter
	answers *authz.Answers
}

func newMetricsReaders(root *client.Factory, groups authn.GroupFilter) *metricsReaders {
	return &metricsReaders{root: root, groups: groups, answers: authz.NewAnswers(readersFor, readersFor)}
}

// may reports whether a user may read metrics. Its error says that this could not be
// found out.
func (m *metricsReaders) may(ctx context.Context, who user.Info) (bool, error) {
	review := authz.ReviewOf(&user.DefaultInfo{Name: who.GetName(), UID: who.GetUID(), Groups: m.groups.Filter(who.GetGroups()), Extra: who.GetExtra()})
	review.Spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Verb: "get", Path: "/metrics"}
	return m.answers.May(ctx, "", review, func(ctx context.Context) (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, readersTimeout)
		defer cancel()
		return authz.RequestDeepReview(ctx, m.root.Cluster(core.RootCluster.Path()), review)
	})
}
