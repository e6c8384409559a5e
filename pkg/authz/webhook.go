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

// NewWebhook returns the external authorizer that the options name, and nil
// where they name none. It is upstream's: it caches what it is told, and has no
// opinion when the webhook cannot be reached.
func NewWebhook(o Options) (authorizer.Authorizer, error) {
	if o.WebhookConfigFile == "" {
		return nil, nil //nolint:nilnil // nothing is configured, and that is fine
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
		if err != nil { // which has been logged
			err = errWebhook
		}
		return decision, reason, err
	}), nil
}

// errWebhook is what the client is told of a webhook that failed: where it is and
// what it says is the operator's business.
var errWebhook = errors.New("the authorization webhook has failed; the server's log says why")

// WithClusterName tells next the logical cluster of a request, in an extra
// attribute of the user: other processes do not see the context, and caches of
// decisions must not mix logical clusters up.
func WithClusterName(next authorizer.Authorizer) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if a.GetUser() == nil {
			return authorizer.DecisionNoOpinion, "", nil
		}
		return next.Authorize(ctx, inCluster{a, namedCluster{a.GetUser(), clusterName(ctx).String()}})
	})
}

// inCluster are attributes with another user.
type inCluster struct {
	authorizer.Attributes
	user user.Info
}

func (a inCluster) GetUser() user.Info { return a.user }

// namedCluster is a user with the logical cluster it is asked about.
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
