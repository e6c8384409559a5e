package load

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// place is where objects can be put: a namespace, in a logical cluster where
// the server has them.
type place struct {
	client    *kubernetes.Clientset
	namespace string
}

// places returns one place per logical cluster, or as many namespaces of a
// server that has no logical clusters. All of them share a connection.
func places(target Target, clusters []string) ([]place, error) {
	made := make([]place, 0, len(clusters))
	if !target.Tenants {
		client, err := target.client()
		if err != nil {
			return nil, err
		}
		for _, cluster := range clusters {
			made = append(made, place{client: client, namespace: cluster})
		}
		return made, nil
	}
	for _, cluster := range clusters {
		client, err := target.In(cluster).client()
		if err != nil {
			return nil, err
		}
		made = append(made, place{client: client, namespace: namespace})
	}
	return made, nil
}

// Population are the objects that list and watch workloads work on.
type Population struct {
	// Clusters are the logical clusters that hold the objects; on a server
	// without them, namespaces of these names do.
	Clusters []string
	// Objects is the number of ConfigMaps in all.
	Objects int
	// Size is the number of bytes of data in each.
	Size int
	// Run tells the objects from others.
	Run string
}

// populatingClients create objects at the same time.
const populatingClients = 16

// Populate creates the objects.
func Populate(ctx context.Context, target Target, p Population) error {
	where, err := places(target, p.Clusters)
	if err != nil {
		return err
	}
	if len(where) == 0 {
		return fmt.Errorf("no logical clusters to put objects in at %s", target.Name)
	}
	data := map[string]string{"data": strings.Repeat("x", p.Size)}
	create := &phase{limit: int64(p.Objects)}
	run(ctx, create, make([]struct{}, populatingClients), func(ctx context.Context, _ struct{}, n int) error {
		to := where[n%len(where)]
		_, err := to.client.CoreV1().ConfigMaps(to.namespace).Create(ctx, configMap(objectName(p.Run, n/len(where)), p.Run, data), metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
	if err := create.recorder.FirstError(); err != nil {
		return fmt.Errorf("filling %s with objects: %w", target.Name, err)
	}
	return ctx.Err()
}

// Clear removes the objects.
func Clear(ctx context.Context, target Target, p Population) error {
	where, err := places(target, p.Clusters)
	if err != nil {
		return err
	}
	for _, from := range where {
		err := from.client.CoreV1().ConfigMaps(from.namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, ofRun(p.Run))
		if err != nil {
			return fmt.Errorf("removing the objects of the run from %s: %w", target.Name, err)
		}
	}
	return nil
}

// objectName names objects the same in every place, as users do.
func objectName(run string, n int) string { return fmt.Sprintf("bench-%s-%d", run, n) }
