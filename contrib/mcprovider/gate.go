package mcprovider

import (
	"context"

	"github.com/kcp-dev/logicalcluster/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"

	"github.com/shardplane/shardplane/pkg/client"
)

// workingKey is the key of contexts of work that the ring has let begin.
type workingKey struct{}

// working returns the logical cluster that the work of ctx is in, if that has not ended.
func working(ctx context.Context) logicalcluster.Name {
	name, _ := ctx.Value(workingKey{}).(logicalcluster.Name)
	if ctx.Err() != nil {
		return ""
	}
	return name
}

// Gate returns a reconciler that works on what the ring gives to this replica. Other requests are
// dropped: who has the logical cluster has them, too. The context of the work ends when the
// logical cluster goes to another replica, and the work has to end soon after. Without a ring it
// is the reconciler itself.
func (p *Provider) Gate(reconciler mcreconcile.Reconciler) mcreconcile.Reconciler {
	if p.options.Ring == nil {
		return reconciler
	}
	return mcreconcile.Func(func(ctx context.Context, request mcreconcile.Request) (reconcile.Result, error) {
		if request.ClusterName == "" {
			return reconciler.Reconcile(ctx, request) // of the local cluster
		}
		work, end, ok := p.options.Ring.Begin(ctx, client.HashOf(request.ClusterName.String()))
		if !ok {
			return reconcile.Result{}, nil
		}
		defer end()
		work = context.WithValue(work, workingKey{}, logicalcluster.Name(request.ClusterName))
		result, err := reconciler.Reconcile(work, request)
		if work.Err() != nil && ctx.Err() == nil {
			return reconcile.Result{}, nil // it goes on elsewhere
		}
		return result, err
	})
}

// marker is an object by which ranges know a logical cluster.
func marker(name logicalcluster.Name) metav1.Object {
	return &metav1.ObjectMeta{Annotations: map[string]string{logicalcluster.AnnotationKey: name.String()}}
}
