package apibinding

import (
	"context"
	"errors"
	"time"

	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/replicas"
	"github.com/shardplane/shardplane/pkg/request"
)

// ConvertingName is the name of the controller of APIConversions.
const ConvertingName = "apiconversion"

// Converting configures the controller of APIConversions.
type Converting struct {
	// Local reaches the shard itself as system:masters, and Cache the cache server with the schemas of other shards; Cache may be
	// nil.
	Local, Cache *client.Factory
	// Conversions include those of other shards.
	Conversions *replicas.Dual[*apisv1alpha1.APIConversion]
	// Convert applies conversion rules to the shard's copy of a schema, if there is one. It returns an error that wraps
	// apis.ErrInvalidSchema if the rules are invalid.
	Convert func(ctx context.Context, schema types.UID, rules *apisv1alpha1.APIConversionSpec) error
}

// NewConverting returns a controller that applies APIConversions to the copies of the schemas with their names. When one is
// deleted, its rules stay in effect. Its keys are APIConversions.
func NewConverting(c Converting) *reconcile.Controller[client.Key] {
	return reconcile.New(reconcile.Config[client.Key]{
		Name: ConvertingName, Workers: 1, Reconcile: c.reconcile,
		Sources: []reconcile.Source[client.Key]{reconcile.FromInformer(c.Conversions, func(conversion *apisv1alpha1.APIConversion) []client.Key {
			return reconcile.KeysOf(conversion)
		})},
	})
}

func (c Converting) reconcile(ctx context.Context, key client.Key) (reconcile.Result, error) {
	conversion, err := c.Conversions.Get(key.Cluster, "", key.Name)
	if err != nil {
		if errors.Is(err, client.ErrIncomplete) {
			return reconcile.Result{Backoff: true}, nil
		}
		return reconcile.Result{}, reconcile.IgnoreNotFound(err)
	}
	key.Shard = conversion.Annotations[request.ShardAnnotation]
	schema, err := ReadSchema(ctx, c.Local, c.Cache, key)
	if apierrors.IsNotFound(err) && key.Shard != "" {
		return reconcile.Result{Backoff: true}, nil // it may be replicated later
	}
	if err != nil {
		return reconcile.Result{}, reconcile.IgnoreNotFound(err)
	}
	err = c.Convert(ctx, schema.UID, &conversion.Spec)
	if errors.Is(err, apis.ErrInvalidSchema) {
		// It was created before its schema, otherwise admission would have rejected it.
		klog.FromContext(ctx).Error(err, "APIConversion does not match the schema with its name, which is served unchanged", "logicalCluster", key.Cluster, "name", key.Name)
		return reconcile.Result{}, nil
	}
	return reconcile.Result{}, err
}

const (
	// UnpinningName is the name of the controller that deletes unused copies of schemas.
	UnpinningName = "boundschemas"
	unpinInterval = 5 * time.Minute
)

// NewUnpinning returns a controller that calls unpin periodically.
func NewUnpinning(unpin func(context.Context) error) *reconcile.Controller[struct{}] {
	return reconcile.New(reconcile.Config[struct{}]{
		Name: UnpinningName, Workers: 1,
		Reconcile: func(ctx context.Context, _ struct{}) (reconcile.Result, error) {
			return reconcile.Result{RequeueAfter: unpinInterval}, unpin(ctx)
		},
		Sources: []reconcile.Source[struct{}]{reconcile.Once(struct{}{})},
	})
}
