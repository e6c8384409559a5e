package identity

import (
	"context"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apiserver/pkg/authentication/user"
)

// Payer is who pays for what a user takes of something that all share, such as
// places to wait. It is comparable. The zero Payer is nobody.
type Payer struct {
	// User is the name of a user; of a service account it is empty if its logical
	// cluster pays.
	User string
	// Cluster is where a service account is at home.
	Cluster logicalcluster.Name
}

// PayerOf returns who pays for u, as seen from a logical cluster or from none.
// Service accounts of a logical cluster pay together: its administrators make as
// many as they like, and accounts of others have the same names.
func PayerOf(from logicalcluster.Name, u user.Info) Payer {
	if home, ok := HomeOf(from, u); ok {
		return Payer{Cluster: home}
	}
	return Payer{User: u.GetName()}
}

type payerKey struct{}

// WithPayer returns a context whose request is paid for by p, whoever it
// impersonates.
func WithPayer(ctx context.Context, p Payer) context.Context {
	return context.WithValue(ctx, payerKey{}, p)
}

// PayerFrom returns who pays for the request of ctx; false if nobody has said so.
func PayerFrom(ctx context.Context) (Payer, bool) {
	p, ok := ctx.Value(payerKey{}).(Payer)
	return p, ok
}
