package identity

import (
	"context"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/request"
)

// Payer is who pays for what a user takes of something that all share, such as
// places to wait. It is comparable. The zero Payer is nobody.
type Flow struct {
	// User is the name of a user; of a service account, and of a user whom a workspace's
	// issuer has named, it is empty if the logical cluster pays.
	User string
	// Cluster is where these are at home.
	Cluster logicalcluster.Name
}

// PayerOf returns who pays for u, as seen from a logical cluster or from none.
// Service accounts of a logical cluster pay together: its administrators make as
// many as they like, and accounts of others have the same names. So do users of
// issuers that only the logical cluster knows.
func FlowOf(from logicalcluster.Name, u user.Info) Flow {
	if home, ok := HomeOf(from, u); ok {
		return Flow{Cluster: home}
	}
	if claims := u.GetExtra()[request.ExtraClusterName]; !IsServiceAccount(u) && len(claims) == 1 {
		return Flow{Cluster: logicalcluster.Name(claims[0])}
	}
	return Flow{User: u.GetName()}
}

type flowKey struct{}

// WithPayer returns a context whose request is paid for by p, whoever it
// impersonates.
func WithFlow(ctx context.Context, p Flow) context.Context {
	return context.WithValue(ctx, flowKey{}, p)
}

// PayerFrom returns who pays for the request of ctx: whom WithPayer says, or its
// user.
func FlowFrom(ctx context.Context) Flow {
	if p, ok := ctx.Value(flowKey{}).(Flow); ok {
		return p
	}
	who, ok := apirequest.UserFrom(ctx)
	if !ok {
		return Flow{}
	}
	cluster, _ := request.ClusterFrom(ctx)
	return FlowOf(cluster.Name, who)
}

// IsExempt reports whether the request of ctx is one of the installation's own
// components or of its administrators, which no limit refuses. No tenant can be
// either.
func IsExempt(ctx context.Context) bool {
	who, ok := apirequest.UserFrom(ctx)
	return ok && (who.GetName() == user.APIServerUser || MemberOf(ctx, who, user.SystemPrivilegedGroup, request.GroupShards))
}
