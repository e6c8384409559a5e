// Command greeter is a controller for one kind in all logical clusters of a server. It writes a greeting to the status
// of each Greeting.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile"
)

// Greeting is a kind of a CustomResourceDefinition or an APIExport.
type Greeting struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		Name string `json:"name"`
	} `json:"spec"`
	Status struct {
		Message string `json:"message,omitempty"`
	} `json:"status,omitzero"`
}

// GreetingList is a list of Greetings.
type GreetingList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []Greeting `json:"items"`
}

// DeepCopyObject implements runtime.Object, as deepcopy-gen would.
func (g *Greeting) DeepCopyObject() runtime.Object {
	c := *g
	g.DeepCopyInto(&c.ObjectMeta)
	return &c
}

// DeepCopyObject implements runtime.Object.
func (l *GreetingList) DeepCopyObject() runtime.Object {
	c := *l
	l.ListMeta.DeepCopyInto(&c.ListMeta)
	c.Items = make([]Greeting, len(l.Items))
	for i := range l.Items {
		c.Items[i] = l.Items[i]
		l.Items[i].ObjectMeta.DeepCopyInto(&c.Items[i].ObjectMeta)
	}
	return &c
}

var greetings = client.DefineResource[Greeting, GreetingList](schema.GroupVersion{Group: "example.io", Version: "v1"}, "greetings")

func run(ctx context.Context, kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	factory, err := client.NewFactory(config)
	if err != nil {
		return err
	}
	// One watch for the Greetings of all logical clusters.
	informer := greetings.Informer(factory.Wildcard(), client.InformerOptions[*Greeting]{})
	controller := reconcile.New(reconcile.Config[client.Key]{
		Name:    "greeter",
		Sources: []reconcile.Source[client.Key]{reconcile.Keys(informer)},
		Reconcile: func(ctx context.Context, key client.Key) (reconcile.Result, error) {
			found, err := informer.Lister().Get(key)
			if err != nil {
				return reconcile.Result{}, nil //nolint:nilerr // the Greeting was deleted
			}
			updated := found.DeepCopyObject().(*Greeting) //nolint:forcetypeassert // a deep copy
			updated.Status.Message = "Hello, " + found.Spec.Name + "!"
			scope := factory.Cluster(key.Cluster.Path())
			_, err = reconcile.Commit(ctx, greetings.InNamespace(scope, key.Namespace), found, updated)
			return reconcile.Result{}, err
		},
	})

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var running sync.WaitGroup
	running.Go(func() {
		defer cancel()
		err = informer.Run(ctx)
	})
	failed := controller.Run(ctx)
	cancel()
	running.Wait()
	if failed != nil {
		return failed
	}
	return err
}

func main() {
	kubeconfig := flag.String("kubeconfig", os.Getenv("KUBECONFIG"), "path of the kubeconfig")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *kubeconfig); err != nil {
		fmt.Fprintln(os.Stderr, err)
		stop()
		os.Exit(1) //nolint:gocritic // stop has been called
	}
}
