// Runs a shell line under Curator's InterProcessMutex: Curator CONNECT PATH LINE
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;

public class Curator {
    public static void main(String[] args) throws Exception {
        int status;
        try (CuratorFramework client = CuratorFrameworkFactory.newClient(args[0], new ExponentialBackoffRetry(100, 5))) {
            client.start();
            InterProcessMutex mutex = new InterProcessMutex(client, args[1]);
            mutex.acquire();
            try {
                status = new ProcessBuilder("sh", "-c", args[2]).inheritIO().start().waitFor();
            } finally {
                mutex.release();
            }
        }
        System.exit(status);
    }
}
