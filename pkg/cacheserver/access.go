package cacheserver

import (
	"fmt"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	authnunion "k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/path"
	"k8s.io/apiserver/pkg/authorization/union"

	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/authz"
)

// withAnonymous makes everybody without valid credentials anonymous, so that
// the authorizer answers them with 403 like everybody else who may not come in.
func withAnonymous(known authenticator.Request) authenticator.Request {
	return authnunion.New(known, anonymous.NewAuthenticator(nil))
}

// newAuthorizer lets system:masters do everything and everybody read the probes.
func newAuthorizer() (authorizer.Authorizer, error) {
	open := make([]string, 0, 2*len(authn.ProbePaths()))
	for _, probe := range authn.ProbePaths() {
		open = append(open, probe, probe+"/*")
	}
	probes, err := path.NewAuthorizer(open)
	if err != nil {
		return nil, fmt.Errorf("open paths: %w", err)
	}
	return union.New(
		union.NamedAuthorizer{AuthorizerName: "probes", Authorizer: probes},
		union.NamedAuthorizer{AuthorizerName: "masters", Authorizer: authz.Privileged(user.SystemPrivilegedGroup)},
	)
}
