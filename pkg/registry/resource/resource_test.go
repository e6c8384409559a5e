package resource

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

var (
	oneVersion = schema.GroupVersion{Group: "one.example.com", Version: "v1"}
	twoVersion = schema.GroupVersion{Group: "two.example.com", Version: "v1"}
)

type thingsResource = Resource[*corev1.ConfigMap, *corev1.ConfigMapList]

func things() *thingsResource {
	return &thingsResource{
		ShortNames: []string{"th"}, Categories: []string{"all"}, Namespaced: true,
		Strategy:     Strategy[*corev1.ConfigMap]{ResetFields: [][]string{{"data", "a"}}},
		Subresources: []Subresource[*corev1.ConfigMap]{{Name: "status"}, {Name: "finish", WriteOnly: true}},
		Extra: func(store *genericregistry.Store) map[string]rest.Storage {
			return map[string]rest.Storage{"token": &updateStorage{store: store}}
		},
	}
}

func alternate(of *thingsResource) *Alternate[*corev1.ConfigMap, *corev1.ConfigMapList] {
	return &Alternate[*corev1.ConfigMap, *corev1.ConfigMapList]{
		Of:      of,
		New:     func() runtime.Object { return &eventsv1.Event{} },
		NewList: func() runtime.Object { return &eventsv1.EventList{} },
	}
}

// memory counts the open storages. It returns an error for the resource fails.
type memory struct {
	open  int
	fails string
}

func (m *memory) GetRESTOptions(resource schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	if resource.Resource == m.fails {
		return generic.RESTOptions{}, errors.New("no storage today")
	}
	return generic.RESTOptions{
		ResourcePrefix: resource.Resource,
		StorageConfig:  &storagebackend.ConfigForResource{GroupResource: resource},
		Decorator: func(_ *storagebackend.ConfigForResource, _ string, _ func(runtime.Object) (string, error), _, _ func() runtime.Object, _ apistorage.AttrFunc, _ apistorage.IndexerFuncs, _ *cache.Indexers) (apistorage.Interface, factory.DestroyFunc, error) {
			m.open++
			closed := false
			return nil, func() {
				if !closed {
					m.open--
				}
				closed = true
			}, nil
		},
	}, nil
}

func builder(t *testing.T, options generic.RESTOptionsGetter, groups ...Group) *Builder {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, group := range groups {
		require.NoError(t, group.Register(scheme))
	}
	return &Builder{Scheme: scheme, RESTOptions: options}
}

func TestBuild(t *testing.T) {
	resource := things()
	groups := []Group{
		{GroupVersion: oneVersion, Resources: []Definition{resource}},
		{GroupVersion: twoVersion, Resources: []Definition{alternate(resource)}},
	}
	store := &memory{}
	b := builder(t, store, groups...)
	storages, err := b.Build(groups)
	require.NoError(t, err)
	require.Equal(t, 1, store.open, "an alternate must not open a second storage")

	require.Len(t, storages, 2)
	require.Equal(t, storages[0], storages[1])
	for path, kinds := range map[string]struct{ get, update, list bool }{
		"configmaps":        {true, true, true},
		"configmaps/status": {true, true, false},
		"configmaps/finish": {false, true, false},
		"configmaps/token":  {false, true, false},
	} {
		storage := storages[0][path]
		_, get := storage.(rest.Getter)
		_, update := storage.(rest.Updater)
		_, list := storage.(rest.Lister)
		require.Equal(t, struct{ get, update, list bool }{get, update, list}, kinds, path)
	}
	require.Len(t, storages[0], 4)
	main := storages[0]["configmaps"]
	require.Equal(t, []string{"th"}, main.(rest.ShortNamesProvider).ShortNames())
	require.Equal(t, []string{"all"}, main.(rest.CategoriesProvider).Categories())
	require.Equal(t, "configmap", main.(rest.SingularNameProvider).GetSingularName())
	require.Contains(t, main.(rest.ResetFieldsStrategy).GetResetFields(), fieldpath.APIVersion(oneVersion.String()))

	b.Destroy()
	b.Destroy()
	require.Zero(t, store.open)
}

func TestBuildUnwinds(t *testing.T) {
	other := &Resource[*corev1.Secret, *corev1.SecretList]{}
	for name, test := range map[string]struct {
		resources []Definition
		want      string
	}{
		"storage fails":             {[]Definition{things(), other}, "building the storage of secrets.one.example.com: no storage today"},
		"alternate before resource": {[]Definition{things(), alternate(things())}, "list the resource's group first"},
		"same path twice":           {[]Definition{things(), things()}, `have the path "configmaps`},
	} {
		t.Run(name, func(t *testing.T) {
			store := &memory{fails: "secrets"}
			scheme := runtime.NewScheme()
			metav1.AddToGroupVersion(scheme, oneVersion)
			b := &Builder{Scheme: scheme, RESTOptions: store}
			_, err := b.Build([]Group{{GroupVersion: oneVersion, Resources: test.resources}})
			require.ErrorContains(t, err, test.want)
			b.Destroy()
			require.Zero(t, store.open)
		})
	}
}

func TestRegisterReportsErrors(t *testing.T) {
	group := Group{GroupVersion: oneVersion, AddToScheme: func(*runtime.Scheme) error { return errors.New("no such type") }}
	require.EqualError(t, group.Register(runtime.NewScheme()), "registering one.example.com/v1: no such type")
}

func TestTableOfAnotherKind(t *testing.T) {
	convertor := newTable(schema.GroupResource{Resource: "configmaps"}, []Column[*corev1.ConfigMap]{NameColumn[*corev1.ConfigMap]()})
	_, err := convertor.ConvertToTable(t.Context(), &corev1.Secret{}, nil)
	require.EqualError(t, err, "the resource configmaps does not support being converted to a Table")
	table, err := convertor.ConvertToTable(t.Context(), &metav1.Status{Status: "Failure", Reason: "Odd", Message: "no"}, nil)
	require.NoError(t, err)
	require.Equal(t, []any{"Failure", "Odd", "no"}, table.Rows[0].Cells)
	table, err = convertor.ConvertToTable(t.Context(), &corev1.ConfigMapList{Items: make([]corev1.ConfigMap, 2)}, &metav1.TableOptions{NoHeaders: true})
	require.NoError(t, err)
	require.Len(t, table.Rows, 2)
	require.Empty(t, table.ColumnDefinitions)
	_, err = convertor.ConvertToTable(t.Context(), &corev1.SecretList{Items: make([]corev1.Secret, 1)}, nil)
	require.ErrorContains(t, err, "does not support")
}

func TestDefaultRunsOnListsToo(t *testing.T) {
	resource := things()
	resource.Default = func(obj *corev1.ConfigMap) { obj.Data = map[string]string{"a": "b"} }
	scheme := runtime.NewScheme()
	require.NoError(t, Group{GroupVersion: oneVersion, Resources: []Definition{resource}}.Register(scheme))
	list := &corev1.ConfigMapList{Items: make([]corev1.ConfigMap, 2)}
	scheme.Default(list)
	require.Equal(t, "b", list.Items[1].Data["a"])
}
