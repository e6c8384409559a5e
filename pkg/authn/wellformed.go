package authn

import (
	"context"
	"net/http"

	"k8s.io/apiserver/pkg/authentication/authenticator"

	"github.com/shardplane/shardplane/pkg/request/identity"
)

// wellFormed refuses users who would be others behind the next server, whoever
// says so: see identity.WellFormed.
func wellFormed(next authenticator.Request) authenticator.Request {
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		return checked(next.AuthenticateRequest(r))
	})
}

// wellFormedTokens is wellFormed for tokens, which are reviewed as well.
func wellFormedTokens(next authenticator.Token) authenticator.Token {
	return authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		return checked(next.AuthenticateToken(ctx, token))
	})
}

func checked(response *authenticator.Response, ok bool, err error) (*authenticator.Response, bool, error) {
	if ok && err == nil {
		err = identity.CheckWellFormed(response.User)
	}
	if err != nil {
		return nil, false, err
	}
	return response, ok, nil
}
