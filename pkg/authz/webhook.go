package authz

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook"
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook/metrics"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/webhooktransport"
)

// NewWebhook returns the external authorizer of the options, or nil. It caches decisions, and has no opinion
// if the webhook is unreachable.
func NewWebhook(o Options) (authorizer.Authorizer, error) {
	if o.WebhookConfigFile == "" {
		return nil, nil //nolint:nilnil // not configured
	}
	config, err := webhookutil.LoadKubeconfig(o.WebhookConfigFile, nil)
	if err != nil {
		return nil, fmt.Errorf("--authorization-webhook-config-file: %w", err)
	}
	webhooktransport.Operator(config)
	hook, err := webhook.New(config, "v1", o.WebhookAuthorizedTTL, o.WebhookUnauthorizedTTL, *webhook.DefaultRetryBackoff(),
		authorizer.DecisionNoOpinion, nil, "webhook", metrics.NoopAuthorizerMetrics{}, authorizationcel.NewDefaultCompiler())
	if err != nil {
		return nil, fmt.Errorf("--authorization-webhook-config-file: %w", err)
	}
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		decision, reason, err := hook.Authorize(ctx, a)
		if err != nil { // upstream has logged it
			err = errWebhook
		}
		return decision, reason, err
	}), nil
}

// errWebhook hides the reason from clients, because it contains the address and response of the webhook.
var errWebhook = errors.New("the authorization webhook has failed; see the log of the server")

// WithClusterName adds the logical cluster of the request to the extra attributes of the user, because
// external authorizers do not have the context, and caches of decisions must not mix logical clusters.
func WithClusterName(next authorizer.Authorizer) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if a.GetUser() == nil {
			return authorizer.DecisionNoOpinion, "", nil
		}
		return next.Authorize(ctx, inCluster{a, namedCluster{a.GetUser(), clusterName(ctx).String()}})
	})
}

type inCluster struct {
	authorizer.Attributes
	user user.Info
}

func (a inCluster) GetUser() user.Info { return a.user }

// namedCluster is a user with the logical cluster of the request.
type namedCluster struct {
	user.Info
	cluster string
}

func (u namedCluster) GetExtra() map[string][]string {
	extra := map[string][]string{}
	maps.Copy(extra, u.Info.GetExtra())
	extra[request.ExtraAuthorizationClusterName] = []string{u.cluster}
	return extra
}
