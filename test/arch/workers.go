package arch

import (
	"fmt"
	"go/ast"
	"go/types"
	"slices"
)

// Workers is a configuration of a controller of pkg/reconcile.
type Workers struct {
	// Key is the type of the controller's keys.
	Key string
	// One is set if the configuration sets Workers to 1.
	One bool
}

// clusterKeys are the types of keys in other packages that contain a logical cluster.
var clusterKeys = []string{"client.Key", "logicalcluster.Name"}

// workersIn returns the configurations in a file, and its types with a method LogicalCluster.
func workersIn(file *ast.File) (configs []Workers, clustered []string) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CompositeLit:
			if of, ok := n.Type.(*ast.IndexExpr); ok && types.ExprString(of.X) == "reconcile.Config" {
				configs = append(configs, Workers{Key: types.ExprString(of.Index), One: hasOneWorker(n)})
			}
		case *ast.FuncDecl:
			if n.Recv != nil && n.Name.Name == "LogicalCluster" && len(n.Recv.List) == 1 {
				clustered = append(clustered, types.ExprString(n.Recv.List[0].Type))
			}
		default:
		}
		return true
	})
	return configs, clustered
}

func hasOneWorker(config *ast.CompositeLit) bool {
	return slices.ContainsFunc(config.Elts, func(element ast.Expr) bool {
		field, ok := element.(*ast.KeyValueExpr)
		return ok && types.ExprString(field.Key) == "Workers" && types.ExprString(field.Value) == "1"
	})
}

// checkWorkers checks that a controller has one worker if its keys do not contain a logical cluster, because their workers are not shared
// fairly.
func checkWorkers(t *Tree) []string {
	var bad []string
	for _, pkg := range t.sortedPackages() {
		known := slices.Clone(clusterKeys)
		for _, file := range pkg.Files {
			known = append(known, file.ClusterKeys...)
		}
		for _, file := range pkg.Files {
			for _, config := range file.Workers {
				if !file.Test && !config.One && !slices.Contains(known, config.Key) {
					bad = append(bad, fmt.Sprintf("%s has a controller with keys of type %s: add a method LogicalCluster to the type, or set Workers: 1", file.Name, config.Key))
				}
			}
		}
	}
	return bad
}
