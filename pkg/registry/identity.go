package registry

import (
	"k8s.io/apiserver/pkg/authentication/authenticator"

	"github.com/shardplane/shardplane/pkg/registry/core"
)

// Identity configures the resources that deal with the identity of users. The zero value identifies no user and issues
// no tokens.
type Identity struct {
	// Reviewer authenticates tokens for TokenReviews.
	Reviewer authenticator.Token
	// Audiences are the audiences of this API, for TokenReviews without audiences.
	Audiences authenticator.Audiences
	// Tokens configures the tokens of service accounts.
	Tokens core.Tokens
}
