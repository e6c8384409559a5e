package client_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/kcp-dev/logicalcluster/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
)

// Widget is a kind that only the example uses.
type Widget struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitzero"`

	Colour string `json:"colour"`
}

// WidgetList is a list of Widgets.
type WidgetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []Widget `json:"items"`
}

func (w *Widget) DeepCopyObject() runtime.Object {
	c := *w
	w.DeepCopyInto(&c.ObjectMeta)
	return &c
}

func (w *WidgetList) DeepCopyObject() runtime.Object {
	c := *w
	c.Items = append([]Widget(nil), w.Items...)
	return &c
}

func serving(lists map[string]string) (*client.Factory, func()) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch list, ok := lists[r.URL.Path]; {
		case !ok:
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,"message":"there is no such thing"}`)
		case r.URL.Query().Get("watch") != "":
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		default:
			fmt.Fprint(w, list)
		}
	}))
	factory, err := client.NewFactory(&rest.Config{Host: server.URL})
	if err != nil {
		panic(err)
	}
	return factory, func() {
		factory.CloseIdleConnections()
		server.CloseClientConnections()
		server.Close()
	}
}

// The kinds of a resource may be in any scheme: nothing is registered globally.
func ExampleWithScheme() {
	factory, stop := serving(map[string]string{
		"/clusters/root:team/apis/example.io/v1/widgets": `{"apiVersion":"example.io/v1","kind":"WidgetList","items":[{"metadata":{"name":"one"},"colour":"red"}]}`,
	})
	defer stop()
	gv := schema.GroupVersion{Group: "example.io", Version: "v1"}
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(gv, &Widget{}, &WidgetList{})
	widgets := client.DefineResource[Widget, WidgetList](gv, "widgets", client.WithScheme(scheme))

	list, err := widgets.In(factory.Cluster(logicalcluster.NewPath("root:team"))).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(list.Items[0].Name, list.Items[0].Colour)
	_, err = widgets.In(factory.Cluster(logicalcluster.NewPath("root:other"))).List(context.Background(), metav1.ListOptions{})
	fmt.Println(err)
	// Output:
	// one red
	// there is no such thing
}
