// Runs a shell line under one of Curator's locks: Curator mutex|read|write CONNECT PATH LINE
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.retry.ExponentialBackoffRetry;

public class Curator {
    public static void main(String[] args) throws Exception {
        int status;
        try (CuratorFramework client = CuratorFrameworkFactory.newClient(args[1], new ExponentialBackoffRetry(100, 5))) {
            client.start();
            InterProcessLock lock = lock(args[0], client, args[2]);
            lock.acquire();
            try {
                status = new ProcessBuilder("sh", "-c", args[3]).inheritIO().start().waitFor();
            } finally {
                lock.release();
            }
        }
        System.exit(status);
    }

    private static InterProcessLock lock(String kind, CuratorFramework client, String path) {
        switch (kind) {
            case "read":
                return new InterProcessReadWriteLock(client, path).readLock();
            case "write":
                return new InterProcessReadWriteLock(client, path).writeLock();
            default:
                return new InterProcessMutex(client, path);
        }
    }
}
