package cacheserver

import (
	"context"
	"fmt"

	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	authnunion "k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/path"
	"k8s.io/apiserver/pkg/authorization/union"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/serving"
)

// restrict has the server of c know the holders of client certificates. Everybody
// else is anonymous, so that the authorizer answers them with 403 as it does those
// who may not come in.
func restrict(c *genericapiserver.Config, o authn.ClientCertificateOptions) error {
	known, err := authn.New(authn.Options{UserOptions: authn.UserOptions{ClientCertificateOptions: o}}, authn.Sources{})
	if err != nil {
		return err
	}
	serving.Authenticate(c, known)
	c.Authentication.Authenticator = authnunion.New(known.Authenticator, anonymous.NewAuthenticator(nil))
	c.Authorization.Authorizer, err = newAuthorizer()
	return err
}

// newAuthorizer lets system:masters do everything, shards read everything and write what is
// theirs, and everybody read the probes.
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
		union.NamedAuthorizer{AuthorizerName: "shards", Authorizer: authorizer.AuthorizerFunc(authorizeShard)},
	)
}

// authorizeShard lets a shard read everything, and write its own replicas.
func authorizeShard(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	name, ok := identity.ShardOf(ctx, a.GetUser())
	of, scoped := request.ShardFrom(ctx)
	switch {
	case !ok:
		return authorizer.DecisionNoOpinion, "", nil
	case !a.IsResourceRequest() && scoped && a.GetVerb() == "get" && ofDigests(a.GetPath()):
		return authorizer.DecisionAllow, "", nil
	case !a.IsResourceRequest():
		return authorizer.DecisionNoOpinion, "", nil
	}
	if authz.Reads(a) || name != "" && of.Name == name {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "a shard writes its own replicas only", nil
}
