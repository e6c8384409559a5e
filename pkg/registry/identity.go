package registry

import (
	"k8s.io/apiserver/pkg/authentication/authenticator"

	"github.com/shardplane/shardplane/pkg/registry/core"
)

// Identity is what the resources know about who users are. The zero value knows
// nobody and makes no tokens.
type Identity struct {
	// Reviewer knows whose a token is; it answers TokenReviews.
	Reviewer authenticator.Token
	// Audiences are those of this API, for TokenReviews that name none.
	Audiences authenticator.Audiences
	// Tokens says how the tokens of service accounts are made.
	Tokens core.Tokens
}
