// Command kubectl is the upstream kubectl of the Kubernetes release that
// Shardplane is built on. With oldest-kubectl.mod it is that of the oldest
// supported release.
//
// It exists so that the end-to-end tests and the tour in the README have the
// kubectl they were written for on a machine that has only the Go toolchain:
//
//	make bin/kubectl    # or: go build -C tools -o ../bin/kubectl ./kubectl
package main

import (
	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"

	// Exec and cloud credential plugins that a user's kubeconfig may name.
	_ "k8s.io/client-go/plugin/pkg/client/auth"
)

func main() {
	if err := cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()); err != nil {
		util.CheckErr(err)
	}
}
