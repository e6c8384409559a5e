// Package webhook calls the admission webhooks of the logical cluster that a
// write is for, and of no other.
//
// Failure policies, timeouts, match conditions, selectors, side effects,
// reinvocation, audit annotations and warnings are upstream's plugin's, which
// knows one cluster: each logical cluster that has configurations gets one of
// its own, made when something is written there, made again when the
// configurations change, and dropped with the last of them. It has no
// goroutines, so that dropping it is all.
//
// What the server itself writes is not shown to webhooks: its controllers serve
// all logical clusters, and must not wait for the webhook of one.
package webhook

import (
	"context"
	"fmt"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/generic"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"github.com/shardplane/shardplane/pkg/admission/percluster"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/webhooktransport"
)

// Config is what the plugins need.
type Config struct {
	// Clients reaches the server itself as system:masters.
	Clients *client.Factory
	// Namespaces are those of all logical clusters, for namespace selectors.
	Namespaces *client.Informer[*corev1.Namespace]
	// Authorizer answers match conditions that ask for access. It decides in
	// the logical cluster of its context.
	Authorizer authorizer.UnconditionalAuthorizer
	// Transport calls the webhooks.
	Transport *webhooktransport.Tenants
	// Calls bounds the calls, of both kinds together.
	Calls *webhooktransport.Calls
	// Excluded are resources that webhooks never see, such as access reviews.
	Excluded []schema.GroupResource
}

// caller calls the webhooks of one kind.
type caller struct {
	*admission.Handler
	ready percluster.Ready
	calls *webhooktransport.Calls
	hooks *percluster.Cache[*hooks]
}

// hooks are the webhooks of a logical cluster.
type hooks struct {
	*generic.Webhook
	rules ruled
}

// Mutating calls mutating webhooks.
type Mutating struct{ caller }

// Validating calls validating webhooks.
type Validating struct{ caller }

var (
	_ admission.MutationInterface   = &Mutating{}
	_ admission.ValidationInterface = &Validating{}
)

// NewMutating returns the plugin that calls the webhooks of configurations.
func NewMutating(c Config, configurations *client.Informer[*admissionregistrationv1.MutatingWebhookConfiguration]) *Mutating {
	return &Mutating{newCaller(c, configurations, func(f *percluster.Factory, cluster logicalcluster.Name) (*hooks, error) {
		f.MutatingWebhooks = configurations.Lister().Cluster(cluster).List(nil)
		plugin, err := mutating.NewMutatingWebhook(nil)
		if err != nil {
			return nil, err
		}
		made := &hooks{Webhook: plugin.Webhook}
		for _, configuration := range f.MutatingWebhooks {
			for i := range configuration.Webhooks {
				made.rules.add(configuration.Webhooks[i].Rules, configuration.Webhooks[i].MatchPolicy)
			}
		}
		return made, nil
	})}
}

// NewValidating returns the plugin that calls the webhooks of configurations.
func NewValidating(c Config, configurations *client.Informer[*admissionregistrationv1.ValidatingWebhookConfiguration]) *Validating {
	return &Validating{newCaller(c, configurations, func(f *percluster.Factory, cluster logicalcluster.Name) (*hooks, error) {
		f.ValidatingWebhooks = configurations.Lister().Cluster(cluster).List(nil)
		plugin, err := validating.NewValidatingAdmissionWebhook(nil)
		if err != nil {
			return nil, err
		}
		made := &hooks{Webhook: plugin.Webhook, rules: ruled{together: true}}
		for _, configuration := range f.ValidatingWebhooks {
			for i := range configuration.Webhooks {
				made.rules.add(configuration.Webhooks[i].Rules, configuration.Webhooks[i].MatchPolicy)
			}
		}
		return made, nil
	})}
}

// Admit implements admission.MutationInterface.
func (m *Mutating) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	return m.dispatch(ctx, a, o)
}

// Validate implements admission.ValidationInterface.
func (v *Validating) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	return v.dispatch(ctx, a, o)
}

func newCaller[T client.Object](c Config, configurations *client.Informer[T], open func(*percluster.Factory, logicalcluster.Name) (*hooks, error)) caller {
	perCluster := percluster.NewCache(func(cluster logicalcluster.Name) (*hooks, time.Duration, error) {
		factory := &percluster.Factory{Namespaces: percluster.NewNamespaceLister(c.Namespaces, cluster)}
		made, err := open(factory, cluster)
		if err != nil {
			return nil, time.Second, fmt.Errorf("preparing the webhooks of logical cluster %s: %w", cluster, err)
		}
		if err := initialize(made.Webhook, c, factory, cluster); err != nil {
			return nil, time.Second, fmt.Errorf("preparing the webhooks of logical cluster %s: %w", cluster, err)
		}
		return made, 0, nil
	})
	percluster.Follow(perCluster, configurations, func(cluster logicalcluster.Name) bool { return percluster.Empty(configurations, cluster) })
	return caller{
		Handler: admission.NewHandler(admission.Connect, admission.Create, admission.Delete, admission.Update),
		ready:   percluster.Ready{configurations, c.Namespaces},
		calls:   c.Calls,
		hooks:   perCluster,
	}
}

// initialize gives upstream's plugin what its initializers would.
func initialize(hooks *generic.Webhook, c Config, factory *percluster.Factory, cluster logicalcluster.Name) error {
	clients, err := percluster.NewClientset(c.Clients, cluster)
	if err != nil {
		return err
	}
	hooks.SetExternalKubeClientSet(clients)
	hooks.SetExternalKubeInformerFactory(factory)
	hooks.SetUnconditionalAuthorizer(c.Authorizer)
	hooks.SetExcludedAdmissionResources(c.Excluded)
	hooks.SetAuthenticationInfoResolverWrapper(c.Transport.Resolver)
	hooks.InspectFeatureGates(utilfeature.DefaultFeatureGate)
	return hooks.ValidateInitialization()
}

// Applies reports whether the logical cluster of ctx has webhooks of the kind.
func (c *caller) Applies(ctx context.Context) bool {
	cluster, err := request.ClusterNameFrom(ctx)
	return err == nil && c.hooks.Has(cluster)
}

func (c *caller) dispatch(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if percluster.IsServer(a.GetUserInfo()) {
		return nil
	}
	cluster, err := request.ClusterNameFrom(ctx)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if err := c.ready.Wait(ctx, a); err != nil {
		return err
	}
	hooks, found, err := c.hooks.Get(cluster)
	switch {
	case err != nil:
		return apierrors.NewInternalError(err)
	case !found:
		return nil
	default:
		defer request.Pause(ctx)() // webhooks may take long, and may send requests
		release, err := take(ctx, c.calls, cluster, a, hooks.rules.calls(a))
		if err != nil {
			return err
		}
		defer release()
		return hooks.Dispatch(request.WithoutBodies(ctx), a, o)
	}
}
